"""A dispatch mode that looks on while operations run."""

from __future__ import annotations

from torch.utils._python_dispatch import TorchDispatchMode


class WatchingMode(TorchDispatchMode):
    """Sees every operation that runs inside. Not for timed steps."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """torch would load its compiler to keep it out of here, in a second of each rank's time."""
        return False
