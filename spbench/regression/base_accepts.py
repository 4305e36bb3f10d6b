"""What a strategy declines here and would run at another commit.

Only that commit's own code knows. It is asked in a process of its own, which runs this file with
the other tree's packages, so what follows imports no more than a strategy's seams.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

from spbench.strategies.registry import load
from spbench.workload.case import Case

if TYPE_CHECKING:
    from spbench.regression.checkout import Checkout

YES, NO = "runs", "declines"


def accepted_cases(tree: Checkout, cases: Iterable[Case]) -> list[Case]:
    """Those that ``tree`` would run; none of those that it cannot even read.

    Raises CheckoutError if it holds no package.
    """
    cases = list(cases)
    if not cases:
        return []
    lines = tree.ask(__file__, "".join(map(_line, cases)))
    said = [line for line in lines if line in (YES, NO)]
    if len(said) != len(cases):  # it is too old to be asked
        return []
    return [case for case, answer in zip(cases, said, strict=True) if answer == YES]


def _line(case: Case) -> str:
    """As ranks get it: what is left alone, a tree that does not know of it need not read."""
    return case.model_dump_json(by_alias=True, exclude_defaults=True) + "\n"


def main() -> None:
    for line in sys.stdin:
        print(YES if _runs(line) else NO)


def _runs(line: str) -> bool:
    """Whatever goes wrong here would go wrong in its ranks."""
    try:
        case = Case.model_validate_json(line)
        strategy = load(case.strategy)
        return not (strategy.misfit(case.workload) or strategy.why_not(case.workload, case.ranks))
    except Exception:
        return False


if __name__ == "__main__":
    main()
