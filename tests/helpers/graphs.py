"""A backend of torch.compile that runs each graph as it is, and counts how often."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from threading import Lock
from typing import Any, final


@final
class CountedGraphs:
    """For ``torch.compile(..., backend=...)``: graphs that ran, by thread."""

    def __init__(self) -> None:
        self.lock = Lock()
        self._runs: Counter[int] = Counter()

    def __call__(self, graph: Any, examples: Any) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            with self.lock:
                self._runs[threading.get_ident()] += 1
            return graph(*args)

        return run

    def of_this_thread(self) -> int:
        return self._runs[threading.get_ident()]
