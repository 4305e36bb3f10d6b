"""One line of ``spbench doctor``: what a check found, whether it will do, and the remedy if not.

A check is a function of facts that were looked up before, so that tests bring their own facts.
``fail``: ranks would not start, or their results would be wrong. ``warn``: figures may suffer.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Literal

DeviceChoice = Literal["auto", "cuda", "cpu"]
"""The value of --device."""


@dataclass(frozen=True)
class Diagnosis:
    """The result of one check."""

    check: str
    status: Literal["ok", "warn", "fail", "skipped"] = field(kw_only=True)
    found: str
    """The facts, or why the check was skipped."""
    remedy: str = ""
    """What to do; blank where nothing is to be done."""


ok, warn = partial(Diagnosis, status="ok"), partial(Diagnosis, status="warn")
fail, skipped = partial(Diagnosis, status="fail"), partial(Diagnosis, status="skipped")
