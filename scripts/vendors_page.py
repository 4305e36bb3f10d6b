"""The table of docs/vendors.md, from what ``spbench verify --json`` says of the adapters.

    spbench verify -s vendors,torch-cp:alltoall --dtype float32 --gpus 2,3,4 --json \\
        -w benchmarks/vendors/attention-alone.yaml,benchmarks/vendors/attention-alone-causal.yaml \\
        -w benchmarks/vendors/attention-alone-grouped.yaml \\
        | python scripts/vendors_page.py docs/vendors.md

Replaces what stands between the two marks of the page.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from spbench.strategies.registry import load

MARKS = "<!-- table -->", "<!-- end of table -->"
HEAD = ("adapter", "package", "right", "wrong", "refuses")
Check = Mapping[str, Any]


def rows(checks: Sequence[Check]) -> Iterable[tuple[str, ...]]:
    """A row an adapter: its name, its package, and what became of each case."""
    for name in dict.fromkeys(check["strategy"] for check in checks):
        own = [check for check in checks if check["strategy"] == name]
        declined = {check["reason"] for check in own if check["outcome"] == "declined"}
        wrong = [check for check in own if check["outcome"] in ("WRONG", "FAILED")]
        yield (
            f"`{name}`",
            load(name).origin or "not installed",
            cases(check for check in own if check["outcome"] == "passed"),
            f"{cases(wrong)}: {wrong[0]['reason']}" if wrong else "",
            "; ".join(sorted(declined)),
        )


def cases(checks: Iterable[Check]) -> str:
    """Shapes, and the ranks of each: causal on 2, 3 ranks."""
    ranks: dict[str, list[str]] = {}
    for check in checks:
        shape = check["workload"].removeprefix("attention-alone").strip("-")
        ranks.setdefault(shape or "plain", []).append(str(check["ranks"]))
    return "; ".join(f"{shape} on {', '.join(counts)} ranks" for shape, counts in ranks.items())


def main() -> None:
    page = Path(sys.argv[1])
    lines = [HEAD, ("---",) * len(HEAD), *rows(json.load(sys.stdin))]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    first, last = MARKS
    between = re.compile(f"{first}.*{last}", re.DOTALL)
    text = between.sub(lambda _: f"{first}\n{table}\n{last}", page.read_text("utf-8"))
    page.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
