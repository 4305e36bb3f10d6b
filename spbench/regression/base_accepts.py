"""Asks another commit's code which cases it would run that the present code declines.

Only that commit's strategies know. So this file also is a script, which runs with the other tree's
packages; it therefore imports only a strategy's interface, which older trees have as well.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

from spbench.strategies.registry import load
from spbench.workload.case import Case

if TYPE_CHECKING:
    from spbench.regression.checkout import Checkout

RUNS, DECLINES = "runs", "declines"


def accepted_cases(tree: Checkout, cases: Iterable[Case]) -> list[Case]:
    """Those of ``cases`` that ``tree`` would run; none if its code is too old to answer.

    Raises CheckoutError if the tree has no packages.
    """
    cases = list(cases)
    if not cases:
        return []
    lines = tree.run_script(__file__, "".join(map(_line, cases)))
    answers = [line for line in lines if line in (RUNS, DECLINES)]
    if len(answers) != len(cases):
        return []
    return [case for case, answer in zip(cases, answers, strict=True) if answer == RUNS]


def _line(case: Case) -> str:
    """The case as ranks get it, without defaults, which an older tree may not know."""
    return case.model_dump_json(by_alias=True, exclude_defaults=True) + "\n"


def main() -> None:
    for line in sys.stdin:
        print(RUNS if _would_run(line) else DECLINES)


def _would_run(line: str) -> bool:
    """Whatever raises here would also raise in that tree's ranks."""
    try:
        case = Case.model_validate_json(line)
        strategy = load(case.strategy)
        return not (strategy.misfit(case.workload) or strategy.why_not(case.workload, case.ranks))
    except Exception:
        return False


if __name__ == "__main__":
    main()
