"""Types of command-line arguments, whose errors say which values work."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError

from link_events import Event
from network import MOST_NODES

UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
MOST_TURN_MS = 4.0
"""What a kernel of 250 ticks a second gives without being asked."""
LEAST_BITS_PER_S, MOST_BITS_PER_S = 1e5, 1e11


def nodes(text: str) -> int:
    if text.isdecimal() and 1 <= int(text) <= MOST_NODES:
        return int(text)
    raise ArgumentTypeError(f"'{text}' is not a number of nodes; 1 to {MOST_NODES} work")


def node(text: str) -> int:
    if found := re.fullmatch(r"(?:node)?(\d{1,9})", text):
        return int(found[1])
    raise ArgumentTypeError(f"'{text}' is not a node; write 1 or node1")


def rate(text: str) -> int | None:
    """Bits per second; None for a link that is as fast as the machine copies."""
    if text.lower() == "full":
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg]bit)", text.lower())
    bits_per_s = float(found[1]) * UNITS[found[2]] if found else 0
    if LEAST_BITS_PER_S <= bits_per_s <= MOST_BITS_PER_S:
        return round(bits_per_s)
    works = "100kbit to 100gbit work, as 200mbit or 2.5gbit, and 'full' for no limit"
    raise ArgumentTypeError(f"'{text}' is not a rate; {works}")


def seconds(text: str) -> float:
    if re.fullmatch(r"\d+(\.\d+)?", text) and float(text) > 0:
        return float(text)
    raise ArgumentTypeError(f"'{text}' is not a duration; write seconds, as 90 or 0.5")


def turn(text: str) -> float:
    """Milliseconds of a turn on a core."""
    if re.fullmatch(r"\d+(\.\d+)?", text) and 0.1 <= float(text) <= MOST_TURN_MS:
        return float(text)
    works = f"0.1 to {MOST_TURN_MS:g} milliseconds work, as 0.25"
    raise ArgumentTypeError(f"'{text}' is not a turn; {works}")


def name(text: str) -> str:
    if re.fullmatch(r"[a-z0-9][a-z0-9-]{0,31}", text):
        return text
    works = "up to 32 small letters, digits and '-' work"
    raise ArgumentTypeError(f"'{text}' is not a name for a lab; {works}")


def event(text: str, state: str) -> Event:
    """``1@20`` or ``1@file:PATTERN``."""
    which, _, when = text.partition("@")
    try:
        if pattern := when.removeprefix("file:") if when.startswith("file:") else "":
            return Event(node=node(which), state=state, pattern=pattern)
        return Event(node=node(which), state=state, after_s=seconds(when))
    except ArgumentTypeError:
        works = "NODE@SECONDS works, as 1@20, and NODE@file:PATTERN"
        raise ArgumentTypeError(f"'{text}' does not name a node and a time; {works}") from None
