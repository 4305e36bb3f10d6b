"""Measured power of ``spbench check``: false alarms and planted slowdowns on this machine.

    python benchmarks/check_power.py [--same 20] [--slower 10] [--stored 10] [--log FILE]

- same: HEAD against the work tree, nothing planted; no check may fail.
- slower: SPBENCH_FAULT=slow@rank1:5% planted in the work tree's ranks, interleaved with HEAD.
- stored: 25 % planted, against a baseline of 20 launches that was measured at the beginning.
  (`baseline set` prints the slowdown that is detectable with fewer; docs/decisions/0017.)

The case is dsp on dsp-720m-small, 2 CPU ranks. Each check is a process of its own and adds a line
to FILE. All take about four hours on 2 shared cores. Exit 1 if too few slowdowns are detected, or
if a check fails without a slowdown.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

CASE = ("-s", "dsp", "-g", "2", "-w", "dsp-720m-small", "--device", "cpu")
DETECTED = 0.9
"""Share of the planted slowdowns that must be detected."""


def spbench(*words: str, fault: str = "") -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if name != "SPBENCH_FAULT"}
    environ |= {"SPBENCH_FAULT": fault} if fault else {}
    words = (sys.executable, "-m", "spbench", *words)
    return subprocess.run(words, env=environ, capture_output=True, text=True, check=False)


def check(words: Sequence[str], fault: str, folder: Path) -> dict[str, object]:
    """Runs a check: its exit code, and its verdict on the time."""
    start_s = time.monotonic()
    out = ("--out", str(folder), "--metrics", "time", "--json")
    done = spbench("check", *words, *out, fault=fault)
    if done.returncode not in (0, 4, 5):
        raise RuntimeError(done.stderr)
    findings = json.loads(done.stdout)["findings"]
    times = [time for time in findings if time["metric"] == "time" and time["comparison"]]
    if not times:
        raise RuntimeError(f"no time was compared: {done.stdout}")
    failed = {finding["metric"] for finding in findings if finding["outcome"] == "fail"}
    if failed - {"time"}:
        raise RuntimeError(f"failed for another reason: {done.stdout}")
    kept = ("verdict", "ratio", "low", "high", "launches", "paired", "reason")
    took_s = round(time.monotonic() - start_s)
    verdict = {name: times[0]["comparison"][name] for name in kept}
    return {"exit": done.returncode, "took_s": took_s} | verdict


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, often in (("same", 20), ("slower", 10), ("stored", 10)):
        parser.add_argument(f"--{name}", type=int, default=often)
    parser.add_argument("--log", type=Path, default=Path("check_power.jsonl"))
    options = parser.parse_args()
    failed: dict[str, int] = {}
    broken = 0
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        kinds = {
            "same": (["--base-ref", "HEAD", *CASE], ""),
            "slower": (["--base-ref", "HEAD", *CASE], "slow@rank1:5%"),
            "stored": (["--baseline", "x", "--baselines", str(folder / "kept")], "slow@rank1:25%"),
        }
        if options.stored:
            run = str(folder / "run")
            for words in (
                ("run", *CASE, "--launches", "20", "--out", run),
                ("baseline", "set", "x", run, "--force", "--baselines", str(folder / "kept")),
            ):
                if spbench(*words).returncode != 0:
                    raise RuntimeError(f"{' '.join(words)} failed")
        for kind, (words, fault) in kinds.items():
            for i in range(getattr(options, kind)):
                try:
                    line = check(words, fault, folder / f"{kind}-{i}")
                except RuntimeError as error:  # the other checks count all the same
                    line, broken = {"exit": None, "error": str(error)}, broken + 1
                failed[kind] = failed.get(kind, 0) + (line["exit"] == 4)
                with options.log.open("a", encoding="utf-8") as log:
                    log.write(json.dumps({"kind": kind, "try": i, **line}) + "\n")
    for kind, often in failed.items():
        print(f"{kind}: {often} of {getattr(options, kind)} checks failed")
    needed = {"same": 0.0, "slower": DETECTED, "stored": 1.0}
    kept = [
        often == 0 if kind == "same" else often >= needed[kind] * getattr(options, kind)
        for kind, often in failed.items()
    ]
    if broken:
        print(f"{broken} checks gave no verdict; see {options.log}")
    return 0 if all(kept) and not broken else 1


if __name__ == "__main__":
    sys.exit(main())
