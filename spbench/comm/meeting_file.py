"""Where ranks of one machine meet without a port."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, final

from torch.distributed import FileStore  # type: ignore[attr-defined]


@final
@dataclass(frozen=True, kw_only=True)
class MeetingFile:
    """A file through which ranks of one machine find each other: it listens on no port, and only
    their user can open its folder."""

    path: Path
    rank: int
    ranks: int

    def arguments(self, timeout: timedelta) -> dict[str, Any]:
        """What init_process_group takes in place of an address."""
        store = FileStore(str(self.path), self.ranks)
        store.set_timeout(timeout)
        return {"store": store, "rank": self.rank, "world_size": self.ranks}
