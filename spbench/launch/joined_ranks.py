"""Whether this process is one rank of a launch that somebody else started."""

from __future__ import annotations

import os
from collections.abc import Mapping

from spbench.errors import Failure
from spbench.launch.torchrun import joined_ranks


def joined(environ: Mapping[str, str] = os.environ) -> int | None:
    """How many ranks that launch has; None outside one. Failure for a variable that is damaged."""
    try:
        return joined_ranks(environ)
    except ValueError as error:
        raise Failure(str(error)) from None
