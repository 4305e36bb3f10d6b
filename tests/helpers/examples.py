"""How many examples hypothesis draws: one in eight by day, all with ``make test-all``."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import settings

ALL = "TEST_ALL" in os.environ


def examples(count: int, **more: Any) -> settings:
    """Settings for ``count`` drawn examples, of which a short run takes an eighth, at least ten."""
    return settings(max_examples=count if ALL else max(10, count // 8), deadline=None, **more)
