"""The keys of a ``config.json``, and a model as they describe it.

Whoever reads such a file asks a ``Config`` for a key and the kind of value that it needs; what is
missing or of another kind is refused in a sentence that names the key, the value and what works.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from spbench.text import listed
from spbench.workload.misfits import ratio_of
from spbench.workload.yaml_file import WorkloadError, short

BY_HAND = "write the workload by hand: 'spbench init my-model' makes a file to fill in"
MAX_RATIO = 64


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model as its ``config.json`` describes it."""

    fields: Mapping[str, Any]
    """Fields of a workload; version, name, source, dtype and how it is run are not among them."""
    total: int
    """Parameters of the whole model."""
    conditions: int = 0
    """Those of them that project the condition into shift, scale and gate of the blocks."""
    left_out: Mapping[str, int] = field(default_factory=dict)
    """Parameters that the workload does not have, by what they are; below 0 where it has more."""
    comments: Mapping[str, str] = field(default_factory=dict)
    """What to know of a field, by its name."""
    differs: Sequence[str] = ()
    """Sentences on what the model does otherwise than the workload."""


class Config:
    """The keys of a ``config.json``; what is asked for and cannot be used is refused."""

    def __init__(self, data: Mapping[str, Any], where: str, architecture: str) -> None:
        """``where`` and ``architecture`` stand for the file and its model in messages."""
        self.data, self.where, self.architecture = data, where, architecture

    def has(self, key: str) -> bool:
        """Whether the key is there and not null."""
        return self.data.get(key) is not None

    def error(self, message: str) -> WorkloadError:
        return WorkloadError(f"{self.where}: {message}")

    def size(self, key: str, *others: str, default: int | None = None) -> int:
        """A whole number above 0, by its key or by that of another version of the library.

        What is absent or null is ``default``. Raises WorkloadError where that is None, and for
        any other value.
        """
        name = next(filter(self.has, (key, *others)), key)
        value = self.data.get(name)
        if value is None and default is not None:
            return default
        if value is None:
            state = "null" if name in self.data else "missing"
            remedy = f'write "{key}": N as the model has it, or {BY_HAND}'
            raise self.error(f"{key} is {state}, which {self.architecture} needs; {remedy}")
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        if not is_whole or not 0 < value < 2**31:
            raise self.error(f'{name} is {short(value)}; write a whole number above 0, "{name}": N')
        return int(value)

    def count(self, key: str) -> int:
        """A whole number that may be 0; 0 where the key is absent or null."""
        return 0 if self.data.get(key) == 0 else self.size(key, default=0)

    def ratio(self, key: str, default: float) -> float:
        """A factor of the hidden size, above 0 and at most 64."""
        value = self.data.get(key, default)
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not 0 < value <= MAX_RATIO:
            works = f"write a factor of the hidden size above 0, at most {MAX_RATIO}"
            raise self.error(f"{key} is {short(value)}; {works}")
        return float(value)

    def flag(self, key: str, default: bool = False) -> bool:
        """A truth value; ``default`` where the key is absent or null."""
        value = self.data[key] if self.has(key) else default
        if not isinstance(value, bool):
            raise self.error(f"{key} is {short(value)}; write true or false")
        return value

    def one_of(self, key: str, known: Iterable[Any], default: Any) -> Any:
        """A value that is known; ``default`` where the key is absent."""
        value, words = self.data.get(key, default), list(known)
        if value not in words:
            fits = listed([*map(repr, words)], "or")
            raise self.error(f"{key} is {short(value)}; it may be {fits}, or {BY_HAND}")
        return value

    def sizes(self, key: str, count: int, default: Sequence[int]) -> list[int]:
        """So many whole numbers above 0; a lone one counts for all of them."""
        value = self.data[key] if self.has(key) else [*default]
        sizes = value if isinstance(value, list) else [value] * count
        is_right = all(type(size) is int and 0 < size < 2**15 for size in sizes)
        if len(sizes) != count or not is_right:
            raise self.error(f"{key} is {short(value)}; write {count} whole numbers above 0")
        return sizes


# Parameters of a model's parts


def linear(inputs: int, outputs: int, bias: bool = True) -> int:
    """A projection, with its bias or without."""
    return inputs * outputs + (outputs if bias else 0)


def mlp(hidden: int, columns: int) -> int:
    """Two projections, up and down."""
    return linear(hidden, columns) + linear(columns, hidden)


def embedder(inputs: int, hidden: int, bias: bool = True) -> int:
    """Two projections: of what comes from outside, and of that again."""
    return linear(inputs, hidden, bias) + linear(hidden, hidden, bias)


def mlp_ratio(columns: int, hidden: int) -> float:
    """The ratio of a workload's mlp that has so many columns, in as few digits as that takes."""
    ratio = float(ratio_of(columns, hidden))
    return int(ratio) if ratio.is_integer() else ratio
