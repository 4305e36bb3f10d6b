"""Every registered strategy with each of its flags."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from spbench.strategies.registry import load, places
from spbench.workload.block import Attention, Stack, Sublayer
from spbench.workload.workload import Workload


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


def suited(strategy: str, work: Workload, window: int = 3) -> Workload:
    """``work``; for a strategy that needs a window the same with one in each attention that may
    have one."""
    if "has a window" not in (load(strategy).declines(work, 1) or ""):
        return work

    def windowed(sublayer: Sublayer) -> Sublayer:
        if not isinstance(sublayer, Attention) or len(sublayer.axes) > 1 or work.text:
            return sublayer
        is_plain = not sublayer.projection and not sublayer.pair_bias
        return sublayer.model_copy(update={"window": window}) if is_plain else sublayer

    parts = [Stack(depth=part.depth, block=tuple(map(windowed, part.block))) for part in work.parts]
    return work.with_parts(parts)
