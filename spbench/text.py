"""Words of messages: counts with nouns, names of signals, guesses at mistyped words; groups."""

import difflib
import shlex
import signal
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
GIVE_OTHERS = "give other strategies, ranks or workloads"
"""The remedy where nothing is left of what was asked for."""


def counted(count: int, noun: str) -> str:
    """1 rank, 2 ranks, 1,024 ranks, 3 launches."""
    ending = "" if count == 1 else "es" if noun.endswith(("ch", "s", "x")) else "s"
    return f"{count:,} {noun}{ending}"


def short(value: float) -> str:
    """In three digits, or all that stand before the point: 0.012, 27.4, 357, 1,880."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def listed(words: Sequence[str], last: str = "and") -> str:
    """a, b and c."""
    return f" {last} ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """The items by their key, the keys in the order in which they come first."""
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def quoted(*words: object) -> str:
    """A command to copy into a shell, whatever characters its words hold."""
    return shlex.join(map(str, words))


def first_line(message: object) -> str:
    """The first line of an error or a warning, cut where it is endless."""
    return str(message).strip().split("\n")[0][:300]


def signal_name(number: int) -> str:
    """SIGKILL for 9; a number that has no name here stays one."""
    known = {known.value: known.name for known in signal.Signals}
    return known.get(number, f"signal {number}")


def did_you_mean(word: str, known: Sequence[str], cutoff: float = 0.65) -> str:
    """A question with the three shortest words that ``word`` is a part of, none of them a part of
    another, else with the nearest; empty without one as near as ``cutoff``."""
    close: list[str] = []
    for name in sorted((name for name in known if len(word) > 2 and word in name), key=len):
        if not any(each in name for each in close):
            close.append(name)
    close = close[:3] or difflib.get_close_matches(word, known, n=1, cutoff=cutoff)
    return f"Did you mean {listed([*map(repr, close)], 'or')}?" if close else ""
