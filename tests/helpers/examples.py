"""How many examples hypothesis draws: one in eight by day, all with ``make test-all``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from hypothesis import settings

ALL = "TEST_ALL" in os.environ


def examples(count: int, share: int = 8, **more: Any) -> settings:
    """Settings for ``count`` drawn examples, of which a short run takes an eighth (or another
    ``share``), at least ten."""
    return settings(max_examples=count if ALL else max(10, count // share), deadline=None, **more)


def by_day(places: Sequence[int], *always: int) -> Sequence[int]:
    """All of the places; in a short run every fifth, and those that are ``always`` taken."""
    return places if ALL else sorted({*places[::5], *always})
