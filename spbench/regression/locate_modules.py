"""A script: where Python finds the modules that stdin names, a line each.

It imports nothing of spbench, since the tree that it is asked about may hold another one.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec

AT = "at "
"""Before each answer: packages on the way may print as well."""


def main() -> None:
    for line in sys.stdin:
        place = _place(line.strip())
        if place is not None:
            print(f"{AT}{place}")


def _place(module: str) -> str | None:
    """None where there is none, or where its packages fail: ranks will say why."""
    try:
        spec = find_spec(module)
    except Exception:
        return None
    return None if spec is None else spec.origin


if __name__ == "__main__":
    main()
