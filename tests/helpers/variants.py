"""Every registered strategy with each of its flags."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from spbench.strategies.registry import load, places


def variants() -> list[str]:
    """Every registered strategy, and each once more with each of its flags set."""
    names_and_flags = []
    for name in places():
        flags = [f.name.replace("_", "-") for f in fields(load(name)) if f.default is False]
        names_and_flags += [name, *(f"{name}:{flag}" for flag in flags)]
    return names_and_flags


def by_day() -> list[Any]:
    """All of them as parameters of a test; those with a flag, which change some collectives of a
    strategy and no more, are left to a full run."""
    return [pytest.param(n, marks=pytest.mark.long) if ":" in n else n for n in variants()]
