"""The table of docs/vendors.md, from what ``spbench verify`` and ``spbench run`` say of adapters.

    spbench verify -s vendors --dtype float32 --gpus 2,3,4 --json \\
        -w attention-alone,attention-alone-causal,attention-alone-grouped,attention-alone-forward \\
        > checks.json   # and with --dtype bfloat16 > checks16.json
    spbench run -s vendors,ulysses,ring,kv-gather,megatron-sp,rsa -g 4 \\
        -w attention-alone-temporal --launches 1
    python scripts/vendors_page.py docs/vendors.md checks*.json results/RUN/runs.csv

Replaces what stands between the two marks of the page.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas

from spbench.strategies.registry import VENDORS, load

MARKS = "<!-- table -->", "<!-- end of table -->"
HEAD = (
    *("adapter", "package", "right", "wrong: the smallest case", "refuses"),
    *("sent, MiB", "peak, MiB", "what the adapter changes"),
)
KERNEL, FLASH = "torch's kernel of attention", "torch's kernels where flash_attn is missing"
MASK = "head and tail shards under a mask"
CHANGES = {
    "deepspeed-ulysses": f"{KERNEL}; ranks start its communication one by one",
    "deepspeed-alst": f"{KERNEL}, to which the positions that it gathers are nothing",
    "yunchang-ulysses": FLASH,
    "yunchang-ulysses:torch": "on a CPU the CPU's operation for the GPU's",
    "yunchang-ring": f"{FLASH}; {MASK}",
    "yunchang-usp": f"{FLASH}; {MASK}",
    "torch-cp": f"the template behind `context_parallel`, whose public form is CUDA's; {MASK}",
    "torch-kv-gather": f"{KERNEL} behind its gather",
    "diffusers-ring": f"{KERNEL}, on every device: its own for CPUs gives no log-sum-exp",
    "diffusers-usp": f"{KERNEL}, on every device: its own for CPUs gives no log-sum-exp",
    "para-attn-ulysses": KERNEL,
    "megatron-core-sp": "on a CPU buffers there; weights are spbench's, and all between its layers",
    "ring-flash-attn": f"{FLASH}; {MASK}; without its adapters for transformers",
    "ring-attention-pytorch": "the order of grouped heads",
    "colossalai-rsa": "the softmax between its two functions; no waiting for a GPU",
    "te-cp": "nothing; untried on a GPU",
    "xfuser-usp": "nothing; untried on a GPU",
}
PATCHES = {
    "yunchang": "copies where a float32 buffer is summed; dQ in the dtype of q",
    "ring-flash-attn": "copies where a float32 buffer is summed; dQ in the dtype of q",
    "diffusers": "gradients go one rank back, as blocks do",
    "ring-attention-pytorch": "gradients go home once, in their ring; what came is taken; buckets",
    "colossalai": "gradients are not divided by the ranks",
}
USUAL = "float32"
"""The dtype of cases that do not name theirs."""
Check = Mapping[str, Any]


def rows(checks: Sequence[Check], measured: pandas.DataFrame) -> Iterable[tuple[str, ...]]:
    """A row an adapter: its name, its package, and what became of each case."""
    for name in _in_order(checks):
        own = [check for check in checks if check["strategy"] == name]
        declined = {check["reason"] for check in own if check["outcome"] == "declined"}
        strategy: Any = load(name)
        yield (
            f"`{name}`",
            strategy.origin or "not here",
            cases(
                [*(one for one in own if one["outcome"] == "passed"), *_measured(name, measured)]
            ),
            wrong([check for check in own if check["outcome"] in ("WRONG", "FAILED")]),
            "; ".join(sorted(declined)),
            *_figures(name, measured),
            PATCHES[strategy.package] if name.endswith(":patched") else CHANGES.get(name, ""),
        )


def _in_order(checks: Sequence[Check]) -> list[str]:
    """The adapters, forms behind the stock ones."""
    names = list(dict.fromkeys(check["strategy"] for check in checks))
    own = [name for name in names if name.partition(":")[0] in VENDORS]
    return sorted(own, key=lambda name: (names.index(name.partition(":")[0]), name))


def _measured(name: str, measured: pandas.DataFrame) -> list[Check]:
    """What was gated before it was timed, as a check."""
    rows = measured[(measured["strategy"] == name) & (measured["status"] == "ok")]
    return [{"workload": "temporal", "ranks": ranks} for ranks in rows["world_size"]]


def cases(checks: Iterable[Check]) -> str:
    """Shapes, and their ranks: plain, causal on 2, 3, 4; in bfloat16 plain on 2."""
    ranks: dict[tuple[str, str], list[str]] = {}
    for check in checks:
        shape = str(check["workload"]).removeprefix("attention-alone").strip("-") or "plain"
        dtype = check.get("dtype", USUAL)
        before = "" if dtype == USUAL else f"in {dtype} "
        ranks.setdefault((before, shape), []).append(str(check["ranks"]))
    shapes: dict[tuple[str, str], list[str]] = {}
    for (before, shape), counts in ranks.items():
        shapes.setdefault((before, ", ".join(counts)), []).append(shape)
    return "; ".join(
        f"{before}{', '.join(same)} on {counts}" for (before, counts), same in shapes.items()
    )


def wrong(checks: Sequence[Check]) -> str:
    """Which are, and what the smallest shows, of the fewest ranks."""
    if not checks:
        return ""
    first = min(checks, key=lambda check: check["ranks"])
    errors = {"output": first["output_error"], "gradients": first["gradient_error"]}
    off = (f"{name} by {error:.2g}" for name, error in errors.items() if error and error > 1e-4)
    case = f"-s {first['strategy']} -w {first['workload']} -g {first['ranks']}"
    return f"{cases(checks)}. `spbench verify {case} --dtype {first['dtype']}`: {', '.join(off)}"


def _figures(name: str, measured: pandas.DataFrame) -> tuple[str, str]:
    """Bytes that a rank sends in attention's step, and its peak, where it was measured."""
    found = measured[(measured["strategy"] == name) & (measured["status"] == "ok")]
    if found.empty:
        return "", ""
    row = found.iloc[0]
    sent = row["sent_bytes_forward"] + row["sent_bytes_backward"]
    return f"{sent / 2**20:.1f}", f"{row['peak_allocated_bytes'] / 2**20:.0f}"


def main() -> None:
    page, *checks, runs = map(Path, sys.argv[1:])
    made = [check for file in checks for check in json.loads(file.read_text("utf-8"))]
    found = rows(made, pandas.read_csv(runs))
    lines = [HEAD, ("---",) * len(HEAD), *found]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    first, last = MARKS
    between = re.compile(f"{first}.*{last}", re.DOTALL)
    text = between.sub(lambda _: f"{first}\n{table}\n{last}", page.read_text("utf-8"))
    page.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
