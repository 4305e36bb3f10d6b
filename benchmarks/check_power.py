"""``spbench check`` for real: false alarms and planted slowdowns on this machine.

    python benchmarks/check_power.py [--same 20] [--slower 10] [--stored 10] [--log FILE]

- same: HEAD against the work tree, nothing planted; no check may fail.
- slower: SPBENCH_FAULT=slow@rank1:5% planted in the work tree's ranks, interleaved with HEAD.
- stored: 25 % planted, against a baseline of 20 launches that was measured at the beginning.
  (`baseline set` says what can be found against fewer; docs/decisions/0017.)

dsp on dsp-720m-small, 2 CPU ranks. Each check is a process of its own; a line for each is added
to FILE. Takes about four hours on 2 shared cores. Exit 1 if too few are found or any is made up.
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
FOUND = 0.9


def spbench(*words: str, fault: str = "") -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if name != "SPBENCH_FAULT"}
    environ |= {"SPBENCH_FAULT": fault} if fault else {}
    words = (sys.executable, "-m", "spbench", *words)
    return subprocess.run(words, env=environ, capture_output=True, text=True, check=False)


def check(words: Sequence[str], fault: str, folder: Path) -> dict[str, object]:
    """One check: its exit code, and what it found of the time."""
    start_s = time.monotonic()
    out = ("--out", str(folder), "--metrics", "time", "--json")
    done = spbench("check", *words, *out, fault=fault)
    if done.returncode not in (0, 4, 5):
        raise RuntimeError(done.stderr)
    findings = json.loads(done.stdout)["findings"]
    times = [one for one in findings if one["metric"] == "time" and one["comparison"] is not None]
    if not times:
        raise RuntimeError(f"no time was compared: {done.stdout}")
    failed = {one["metric"] for one in findings if one["outcome"] == "fail"}
    if failed - {"time"}:
        raise RuntimeError(f"failed for another reason: {done.stdout}")
    kept = ("verdict", "ratio", "low", "high", "launches", "paired", "reason")
    took_s = round(time.monotonic() - start_s)
    found = {name: times[0]["comparison"][name] for name in kept}
    return {"exit": done.returncode, "took_s": took_s} | found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, often in (("same", 20), ("slower", 10), ("stored", 10)):
        parser.add_argument(f"--{name}", type=int, default=often)
    parser.add_argument("--log", type=Path, default=Path("check_power.jsonl"))
    asked = parser.parse_args()
    failed: dict[str, int] = {}
    broken = 0
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        kinds = {
            "same": (["--base-ref", "HEAD", *CASE], ""),
            "slower": (["--base-ref", "HEAD", *CASE], "slow@rank1:5%"),
            "stored": (["--baseline", "x", "--baselines", str(folder / "kept")], "slow@rank1:25%"),
        }
        if asked.stored:
            run = str(folder / "run")
            for words in (
                ("run", *CASE, "--launches", "20", "--out", run),
                ("baseline", "set", "x", run, "--force", "--baselines", str(folder / "kept")),
            ):
                if spbench(*words).returncode != 0:
                    raise RuntimeError(f"{' '.join(words)} failed")
        for kind, (words, fault) in kinds.items():
            for i in range(getattr(asked, kind)):
                try:
                    found = check(words, fault, folder / f"{kind}-{i}")
                except RuntimeError as error:  # the others tell something all the same
                    found, broken = {"exit": None, "error": str(error)}, broken + 1
                failed[kind] = failed.get(kind, 0) + (found["exit"] == 4)
                with asked.log.open("a", encoding="utf-8") as log:
                    log.write(json.dumps({"kind": kind, "try": i, **found}) + "\n")
    for kind, often in failed.items():
        print(f"{kind}: {often} of {getattr(asked, kind)} checks failed")
    wanted = {"same": 0.0, "slower": FOUND, "stored": 1.0}
    kept = [
        often == 0 if kind == "same" else often >= wanted[kind] * getattr(asked, kind)
        for kind, often in failed.items()
    ]
    if broken:
        print(f"{broken} checks came to nothing; see {asked.log}")
    return 0 if all(kept) and not broken else 1


if __name__ == "__main__":
    sys.exit(main())
