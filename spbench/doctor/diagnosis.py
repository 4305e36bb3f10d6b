"""One line of ``spbench doctor``: what a check found, whether it will do, and the remedy if not.

A check is a function of facts that were looked up before, so that tests bring their own facts.
``fail``: ranks would not start, or their results would be wrong. ``warn``: figures may suffer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

CheckStatus = Literal["ok", "warn", "fail", "skipped"]
DeviceChoice = Literal["auto", "cuda", "cpu"]
"""The value of --device."""


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """The result of one check."""

    check: str
    status: CheckStatus
    found: str
    """The facts, or why the check was skipped."""
    remedy: str = ""
    """What to do; blank where nothing is to be done."""


def ok(check: str, found: str) -> Diagnosis:
    return Diagnosis(check=check, status="ok", found=found)


def warn(check: str, found: str, remedy: str) -> Diagnosis:
    return Diagnosis(check=check, status="warn", found=found, remedy=remedy)


def fail(check: str, found: str, remedy: str) -> Diagnosis:
    return Diagnosis(check=check, status="fail", found=found, remedy=remedy)


def skipped(check: str, why: str) -> Diagnosis:
    return Diagnosis(check=check, status="skipped", found=why)
