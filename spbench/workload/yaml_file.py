"""YAML as plain data with the line of every key, and mistakes in it as sentences.

Aliases, deep nesting, huge numbers and keys given twice are refused. Every error is a
WorkloadError that begins with file and line, and says what would work; pydantic's become such.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from spbench.errors import Failure
from spbench.text import did_you_mean
from spbench.workload.block import SUBLAYERS, Frozen

try:  # libyaml's takes a seventh of the time
    from yaml import CSafeLoader as Parser
except ImportError:
    from yaml import SafeLoader as Parser  # type: ignore[assignment]

MAX_BYTES = 100_000
MAX_DEPTH = 20  # the parser's time grows with the square of the nesting
MAX_INTEGER = 2**63
MAX_SHOWN = 60
KeyPath = tuple[str | int, ...]
"""Keys and list indices from the top of a file to a value."""


class WorkloadError(Failure, ValueError):
    """Place, reason and remedy of a workload, sweep or setting that cannot be used."""


@dataclass(frozen=True, kw_only=True)
class YamlData:
    """Plain data, and the line of each of its parts."""

    value: Any
    where: str
    """Name of the file, or what stands for it in messages."""
    lines: Mapping[KeyPath, int] = field(default_factory=dict)

    def line(self, path: KeyPath) -> int | None:
        """Line of the deepest part of ``path`` that is in the file; None if none is."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path)

    def written(self, paths: Sequence[KeyPath]) -> KeyPath:
        """The first of ``paths`` of which some part is in the file; else the first."""
        parts = ((path, path[:n]) for path in paths for n in range(1, len(path) + 1))
        return next((path for path, part in parts if part in self.lines), paths[0])

    def at(self, path: KeyPath) -> str:
        """``file:line`` of ``path``."""
        line = self.line(path)
        return self.where if line is None else f"{self.where}:{line}"

    def error(self, path: KeyPath, message: str) -> WorkloadError:
        return WorkloadError(f"{self.at(path)}: {message}")


def read_mapping(path: Path, what: str, most_bytes: int = MAX_BYTES) -> YamlData:
    """The mapping in a file that should hold ``what``, as in 'a workload'."""
    try:
        with path.open("rb") as file:
            raw = file.read(most_bytes + 1)
    except IsADirectoryError:
        raise WorkloadError(f"{path}:1: is a folder; {what} is a YAML file") from None
    except OSError as error:
        others = [other.name for other in path.parent.glob("*.y*ml")]
        near = did_you_mean(path.name, others) if isinstance(error, FileNotFoundError) else ""
        raise WorkloadError(f"{path}: {error.strerror}{near and f'. {near}'}") from None
    except ValueError:  # NUL, or what no file system can encode
        raise WorkloadError(f"{str(path)!a}: not the name of a file") from None
    if len(raw) > most_bytes:
        raise WorkloadError(f"{path}:1: too large; {what} is at most {most_bytes} bytes")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise WorkloadError(f"{path}:{line}: not UTF-8 text") from None
    return parse_mapping(text, str(path), what)


def parse_mapping(text: str, where: str, what: str) -> YamlData:
    """The mapping in a text that should hold ``what``."""
    data = parse(text, where)
    if not isinstance(data.value, dict):
        kind = "nothing" if data.value is None else f"a {type(data.value).__name__}"
        raise WorkloadError(f"{where}:1: holds {kind}; {what} is a mapping of keys")
    return data


def parse(text: str, where: str) -> YamlData:
    """Any data in a text."""
    lines: dict[KeyPath, int] = {}
    try:
        _refuse_aliases_and_depth(text, where)
        node = yaml.compose(text, Loader=Parser)
        value = None if node is None else _value(node, where, lines, ())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        last = text.rstrip().count("\n")  # a mark may lie behind the end
        line = min(mark.line, last) + 1 if mark else 1
        raise WorkloadError(f"{where}:{line}: not YAML: {error.problem}") from None
    except (yaml.reader.ReaderError, UnicodeEncodeError):
        odd = yaml.reader.Reader.NON_PRINTABLE.search(text)
        line = text.count("\n", 0, odd.start() if odd else 0) + 1
        what = f"character U+{ord(odd[0]):04X}" if odd else "a character"
        raise WorkloadError(f"{where}:{line}: not YAML: {what} is not allowed") from None
    return YamlData(value=value, where=where, lines=lines)


def _refuse_aliases_and_depth(text: str, where: str) -> None:
    """Ends at the first event that is refused, before what follows costs time or memory."""
    depth = 0
    events: Iterator[Any] = yaml.parse(text, Loader=Parser)
    for event in events:
        place = f"{where}:{event.start_mark.line + 1}"
        if isinstance(event, yaml.AliasEvent):
            raise WorkloadError(f"{place}: aliases (*{event.anchor}) are not allowed")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH:
            raise WorkloadError(f"{place}: nested more than {MAX_DEPTH} deep")


def _value(node: yaml.Node, where: str, lines: dict[KeyPath, int], path: KeyPath) -> Any:
    """Plain data of a node. Enters the line of each path; refuses keys given twice."""
    lines[path] = node.start_mark.line + 1
    if isinstance(node, yaml.SequenceNode):
        return [_value(n, where, lines, (*path, i)) for i, n in enumerate(node.value)]
    if not isinstance(node, yaml.MappingNode):
        return _scalar(node, f"{where}:{lines[path]}")
    mapping: dict[Any, Any] = {}
    for key_node, value_node in node.value:
        key = _value(key_node, where, lines, (*path, "?"))
        line = key_node.start_mark.line + 1
        if not isinstance(key, str) or key in mapping:
            why = "is given twice" if isinstance(key, str) else "is not a word"
            raise WorkloadError(f"{where}:{line}: key {short(key)} {why}")
        mapping[key] = _value(value_node, where, lines, (*path, key))
        lines[(*path, key)] = line  # of a block value, the line of its key, not of its first item
    return mapping


def _scalar(node: yaml.Node, place: str) -> Any:
    """A number, word or truth value; yaml raises any kind of error, for ``!!int ''`` say."""
    try:
        value = yaml.constructor.SafeConstructor().construct_object(node, deep=True)
    except yaml.YAMLError:
        raise
    except Exception:
        kind = node.tag.rpartition(":")[2]
        raise WorkloadError(f"{place}: {short(node.value)} cannot be read as {kind}") from None
    if isinstance(value, (int, float)) and (odd := _read_in_two_ways(node.value, value)):
        raise WorkloadError(f"{place}: {node.value} {odd}, or put it in quotes if it is a word")
    if isinstance(value, int) and abs(value) >= MAX_INTEGER:
        raise WorkloadError(f"{place}: {short(node.value)} is too large a number")
    return value


def _read_in_two_ways(text: str, value: float) -> str:
    """What is wrong with a number that YAML 1.1 reads as few would, and what to write; blank for
    all others. 010 is octal there, and decimal in YAML 1.2; 1:30 counts in sixties."""
    digits = text.lstrip("+-").replace("_", "")
    if ":" in digits:
        return f"is {value:g} in YAML 1.1, which counts it in sixties; write {value:g}"
    if digits.isdecimal() and digits.startswith("0") and digits.strip("0"):
        decimal = digits.lstrip("0")
        if decimal == str(abs(int(value))):  # 01 is 1 in both
            return f"begins with 0, as octal numbers do in YAML 1.1; write {value}"
        return f"is {value} in YAML 1.1 and {decimal} in YAML 1.2; write {value} or {decimal}"
    return ""


def short(value: object) -> str:
    """A value for messages, of at most ``MAX_SHOWN`` characters."""
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}..."


M = TypeVar("M", bound=Frozen)
EXAMPLES = {"attention": "time", "cross_attention": "120", "mlp": "4"}
FORMS = {
    "block": "write a list of sublayers, as in '- attention: time'",
    "beside": "write an mlp, as in {mlp: 4}",
    "stacks": "write a list of stacks, as in '- {depth: 2, block: [{attention: time}]}'",
    "depth": "write a number of blocks",
    "streams": "write names with their lengths, as in {audio: 126}",
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
    **dict.fromkeys(("value_dim", "v_dim", "value_head_dim"), "v_head_dim"),
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
