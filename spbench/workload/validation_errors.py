"""Pydantic's errors as one sentence with file, line and what would work."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from pydantic import ValidationError

from spbench.text import did_you_mean
from spbench.workload.block import Frozen
from spbench.workload.yaml_lines import MAX_SHOWN, KeyPath, YamlData, short

M = TypeVar("M", bound=Frozen)

Explain = Callable[[Any], tuple[KeyPath, str | None]]
"""Pydantic's error -> the path to blame, and a message of the model's own, if there is one."""

OTHER_NAMES = {
    **dict.fromkeys(("layers", "num_layers", "n_layers"), "depth"),
    **dict.fromkeys(("dim", "d_model", "hidden_size"), "hidden"),
    **dict.fromkeys(("num_heads", "n_heads"), "heads"),
    **dict.fromkeys(("num_kv_heads", "key_heads"), "kv_heads"),
    "batch_size": "batch",
}
"""Keys of other programs, and their names in spbench."""


class MisfitError(ValueError):
    """Fields that do not fit together, and the paths to blame, the likeliest first."""

    def __init__(self, message: str, *paths: KeyPath) -> None:
        super().__init__(message)
        self.paths = paths


def validated(model: type[M], data: YamlData, explain: Explain) -> M:
    """``data`` as a model. Raises WorkloadError with the line of the offending key."""
    try:
        return model.model_validate(data.value)
    except ValidationError as error:
        # A mistyped key gives two errors, unknown and missing; the unknown one says more.
        first = min(error.errors(), key=lambda detail: detail["type"] != "extra_forbidden")
        path, message = explain(first)
        misfit = first.get("ctx", {}).get("error")
        if isinstance(misfit, MisfitError):
            path = data.written(misfit.paths)
        raise data.error(path, message or _message(first, path, model)) from None


def _message(error: Any, path: KeyPath, model: type[Frozen]) -> str:
    name = ".".join(map(str, path)) or model.__name__.lower()
    name = name if len(name) <= MAX_SHOWN else f"{name[: MAX_SHOWN - 3]}..."
    match error["type"]:
        case "extra_forbidden":
            return unknown_key(str(path[-1]), model)
        case "missing":
            return f"key {name!r} is missing"
        case "value_error":
            return str(error["ctx"]["error"])
        case "literal_error":
            given = short(error["input"])
            return f"{name} cannot be {given}; it may be {error['ctx']['expected']}"
        case "bool_type":
            return f"{name} is {short(error['input'])}: write true or false"
        case "too_short":
            return f"{name} is {short(error['input'])}: give one or more"
        case "tuple_type" | "list_type":
            return f"{name} is {short(error['input'])}: write a list, as in [a, b]"
        case "dict_type":
            return f"{name} is {short(error['input'])}: write a mapping, as in {{key: value}}"
        case _ if isinstance(error["input"], float) and math.isnan(error["input"]):
            return f"{name} is nan: not a number"
        case _:
            message = error["msg"][0].lower() + error["msg"][1:]
            return f"{name} is {short(error['input'])}: {message}"


def unknown_key(key: str, model: type[Frozen]) -> str:
    known = [field.alias or name for name, field in model.model_fields.items()]
    return f"unknown key {short(key)}. {suggestion(key, known)}"


def suggestion(word: str, known: Sequence[str]) -> str:
    """'Did you mean ...?', or the whole list if nothing is near."""
    own_name = OTHER_NAMES.get(word, word)
    near = did_you_mean(own_name if own_name in known else word, known)
    return near or f"Known: {', '.join(known)}"
