"""Documents packed end to end along an axis: attention stays inside of each.

documents     4, 3, 2
positions     0 1 2 3 4 5 6 7 8
of documents  0 0 0 0 1 1 1 2 2
places inside 0 1 2 3 0 1 2 0 1
"""

import math
import random
from functools import lru_cache
from itertools import accumulate, pairwise

from spbench.workload.sharding import Sizes


@lru_cache(maxsize=100)
def drawn(length: int, mean: int, seed: int) -> Sizes:
    """Lengths of documents that fill ``length`` positions, drawn until they do.

    Exponential with this mean, rounded, at least 1; the last one is cut off where the sequence
    ends. The same for the same seed, on every machine.

    >>> drawn(20, 6, 1)
    (1, 11, 8)
    """
    # random() alone is the same in every version of Python; expovariate need not be.
    uniform = random.Random(seed).random
    lengths: list[int] = []
    left = length
    while left:
        wanted = max(1, round(-mean * math.log(1.0 - uniform())))
        lengths.append(min(wanted, left))
        left -= lengths[-1]
    return tuple(lengths)


def chunked(length: int, size: int, first: int) -> Sizes:
    """Stretches of a sequence that are ``size`` long, from position ``first`` on, and what is left
    at its ends.

    >>> chunked(10, 4, 1)
    (1, 4, 4, 1)
    """
    bounds = sorted({0, *range(first, length, size), length})
    return tuple(end - begin for begin, end in pairwise(bounds))


@lru_cache(maxsize=100)
def resized(lengths: Sizes, length: int) -> Sizes:
    """Documents of a sequence that became longer or shorter: each end moves in proportion. One that
    becomes shorter than a position goes.

    >>> resized((4000, 3000, 1192), 41)
    (20, 15, 6)
    """
    whole = sum(lengths)
    if whole == length:
        return lengths
    ends = [round(end * length / whole) for end in accumulate(lengths, initial=0)]
    return tuple(end - begin for begin, end in pairwise(ends) if end > begin)


MOST_SHOWN = 100


def in_words(lengths: Sizes) -> str:
    """How many documents there are, and the length of each.

    >>> in_words((4000, 3000, 1192))
    '3 documents of 1,192 to 4,000: 4000, 3000, 1192'
    """
    shown = ", ".join(map(str, lengths[:MOST_SHOWN]))
    more = f" and {len(lengths) - MOST_SHOWN} more" if len(lengths) > MOST_SHOWN else ""
    return f"{len(lengths)} documents of {min(lengths):,} to {max(lengths):,}: {shown}{more}"
