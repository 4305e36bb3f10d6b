"""Pydantic's errors as one sentence with file, line and what would work."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import ValidationError

from spbench.text import did_you_mean
from spbench.workload.block import SUBLAYERS, Frozen
from spbench.workload.yaml_lines import MAX_SHOWN, KeyPath, YamlData, short

M = TypeVar("M", bound=Frozen)
EXAMPLES = {"attention": "time", "cross_attention": "120", "mlp": "4"}
FORMS = {
    "block": "write a list of sublayers, as in '- attention: time'",
    "beside": "write an mlp, as in {mlp: 4}",
    "stacks": "write a list of stacks, as in '- {depth: 2, block: [{attention: time}]}'",
    "depth": "write a number of blocks",
    "axes": "write names with their lengths, as in {time: 16, space: 256}",
    "bool_type": "write true or false",
    "too_short": "give one or more",
    "tuple_type": "write a list, as in [a, b]",
    "model_type": "write a mapping, as in {key: value}",
    "list_type": "write a list, as in [a, b]",
    "dict_type": "write a mapping, as in {key: value}",
}
"""What would work, by the name of a field or by pydantic's type of the error."""
OTHER_NAMES = {
    **dict.fromkeys(("layers", "num_layers", "n_layers"), "depth"),
    **dict.fromkeys(("dim", "d_model", "hidden_size"), "hidden"),
    **dict.fromkeys(("num_heads", "n_heads"), "heads"),
    **dict.fromkeys(("num_kv_heads", "key_heads"), "kv_heads"),
    **dict.fromkeys(("head_size", "dim_head", "attention_head_dim"), "head_dim"),
    "batch_size": "batch",
}
"""Keys of other programs, and their names in spbench."""
OTHER_VALUES = {
    "bf16": "bfloat16",
    **dict.fromkeys(("fp16", "half"), "float16"),
    **dict.fromkeys(("fp32", "float", "single"), "float32"),
    **dict.fromkeys(("fp64", "double"), "float64"),
    **dict.fromkeys(("adam", "AdamW"), "adamw"),
}
"""Values of other programs, and their names in spbench."""


class MisfitError(ValueError):
    """Fields that do not fit together, and the paths to blame, the likeliest first."""

    def __init__(self, message: str, *paths: KeyPath) -> None:
        super().__init__(message)
        self.paths = paths


def validated(model: type[M], data: YamlData, parts: Mapping[str, type[Frozen]]) -> M:
    """``data`` as a model of these ``parts``. Raises WorkloadError with the line of a wrong key."""
    try:
        return model.model_validate(data.value)
    except ValidationError as error:
        # A mistyped key gives two errors, unknown and missing; the unknown one says more.
        first: Any = min(error.errors(), key=lambda detail: detail["type"] != "extra_forbidden")
        path: KeyPath = first["loc"]
        part = next((parts[key] for key in path[-2::-1] if key in parts), model)  # type: ignore[index]
        path = _without_kinds(path)
        message = _message(first, path, part)
        misfit = first.get("ctx", {}).get("error")
        blamed = data.written(misfit.paths) if isinstance(misfit, MisfitError) else path
        raise data.error(blamed, message) from None


def _without_kinds(path: KeyPath) -> KeyPath:
    """A path without the kind of sublayer that pydantic puts behind its index in a block."""
    before = (None, None, *path)
    return tuple(
        key
        for key, above, list_of in zip(path, before[1:], before, strict=False)
        if not (isinstance(above, int) and list_of == "block")
    )


def _message(error: Any, path: KeyPath, model: type[Frozen]) -> str:
    name = ".".join(map(str, path)) or model.__name__.lower()
    name = name if len(name) <= MAX_SHOWN else f"{name[: MAX_SHOWN - 3]}..."
    match error["type"]:
        case "extra_forbidden" if "block" in path and path[-1] in SUBLAYERS:
            return f"two sublayers in one item; give {path[-1]} a '- ' of its own"
        case "extra_forbidden":
            return unknown_key(str(path[-1]), model)
        case "union_tag_not_found":
            return f"{name} is not a sublayer: {_hint(error['input'])}"
        case kind if kind in FORMS:
            return f"{name} is {short(error['input'])}: {FORMS.get(str(path[-1]), FORMS[kind])}"
        case "missing":
            return f"key {name!r} is missing"
        case "value_error":
            return str(error["ctx"]["error"])
        case "literal_error":
            given, expected = error["input"], error["ctx"]["expected"]
            own = repr(OTHER_VALUES.get(str(given), ""))
            hint = f". Did you mean {own}?" if own != "''" and own in expected else ""
            return f"{name} cannot be {short(given)}; it may be {expected}{hint}"
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


def _hint(item: Any) -> str:
    """How to write an item of a block that is not a sublayer."""
    if isinstance(item, str) and item in EXAMPLES:
        return f"{short(item)}. Write '- {item}: {EXAMPLES[item]}'"
    keys = list(item) if isinstance(item, dict) else [item]
    hint = did_you_mean(str(keys[0]), list(SUBLAYERS)) if keys else ""
    forms = f"Each is one of {', '.join(SUBLAYERS)}, as in '- attention: time'"
    return " ".join(filter(None, (f"{short(item)}.", hint, forms)))
