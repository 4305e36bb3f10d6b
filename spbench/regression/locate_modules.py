"""A script that prints the file of each Python module named on stdin, one a line.

It runs with another commit's packages (``Checkout.run_script``), so it imports nothing of spbench.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec

MARK = "at "
"""Precedes each file, since packages that are imported on the way may print as well."""


def main() -> None:
    for line in sys.stdin:
        file = _file_of(line.strip())
        if file is not None:
            print(f"{MARK}{file}")


def _file_of(module: str) -> str | None:
    """None where there is no such module, or its packages fail: ranks will say why."""
    try:
        spec = find_spec(module)
    except Exception:
        return None
    return None if spec is None else spec.origin


if __name__ == "__main__":
    main()
