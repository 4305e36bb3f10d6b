"""A script that answers line by line what only another commit's code knows.

    file MODULE    the file of a Python module
    runs CASE      whether that commit's strategies would run a case, as JSON

``Checkout`` runs it with that commit's packages. It loads of spbench only a strategy's interface,
which older commits have as well.
"""

import sys
from importlib.util import find_spec

MARK = "answer: "
"""Precedes each answer, since packages that are imported on the way may print as well."""


def _file_of(module: str) -> str:
    """Empty where there is no such module."""
    spec = find_spec(module)
    return (spec.origin if spec else None) or ""


def _would_run(line: str) -> str:
    """``yes``, or empty."""
    from spbench.strategies.registry import load
    from spbench.workload.case import Case

    case = Case.model_validate_json(line)
    strategy = load(case.strategy)
    if "mesh" in case.model_fields_set:
        from spbench.strategies.registry import in_mesh

        strategy = in_mesh(case.strategy, case.mesh)
    work = case.workload
    if hasattr(strategy, "flattened"):
        work = strategy.flattened(work)
    why_not = getattr(strategy, "unfit", strategy.why_not)
    declines = strategy.misfit(work) or why_not(work, case.ranks)
    return "" if declines else "yes"


def _answer(question: str, line: str) -> str:
    """Empty where that commit's code fails: its ranks will say why."""
    try:
        return {"file": _file_of, "runs": _would_run}[question](line)
    except Exception:
        return ""


def main() -> None:
    for line in sys.stdin:
        print(f"{MARK}{_answer(sys.argv[1], line.strip())}")


if __name__ == "__main__":
    main()
