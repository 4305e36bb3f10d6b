"""A stream that is a terminal, and the escape codes that one gets."""

from __future__ import annotations

import io
import re

STYLED = re.compile(r"\x1b\[[0-9;]*m")


COLOURED = re.compile(r"\x1b\[(?:\d+;)*[349]\d")


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True
