"""What pydantic finds wrong with a file, in one sentence with file, line and what would work."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from pydantic import ValidationError

from spbench.workload.sublayers import Frozen
from spbench.workload.yaml_data import Data, Path_, WorkloadError, short

M = TypeVar("M", bound=Frozen)

Special = Callable[[Any], tuple[Path_, str | None]]
"""Of pydantic's error: the path to blame, and the sentence if a model has one of its own."""


def validated(model: type[M], data: Data, special: Special) -> M:
    """``data`` as a model. Raises WorkloadError with the line of the offending key."""
    try:
        return model.model_validate(data.value)
    except ValidationError as error:
        # A mistyped key is also a missing one; what was typed says more.
        first = min(error.errors(), key=lambda one: one["type"] != "extra_forbidden")
        path, sentence = special(first)
        raise WorkloadError(f"{data.at(path)}: {sentence or _said(first, path, model)}") from None


def _said(error: Any, path: Path_, model: type[Frozen]) -> str:
    name = ".".join(map(str, path)) or model.__name__.lower()
    match error["type"]:
        case "extra_forbidden":
            return unknown_key(str(path[-1]), model)
        case "missing":
            return f"key {name!r} is missing"
        case "value_error":
            return str(error["ctx"]["error"])
        case "literal_error":
            return f"{name} cannot be {error['input']!r}; it may be {error['ctx']['expected']}"
        case _:
            message = error["msg"][0].lower() + error["msg"][1:]
            return f"{name} is {short(error['input'])}: {message}"


def unknown_key(key: str, model: type[Frozen]) -> str:
    known = [field.alias or name for name, field in model.model_fields.items()]
    return f"unknown key {key!r}. {nearest(key, known)}"


def nearest(word: str, known: Sequence[str]) -> str:
    """'Did you mean …?', or the whole list if nothing is near."""
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"Did you mean {close[0]!r}?" if close else f"Known: {', '.join(known)}"
