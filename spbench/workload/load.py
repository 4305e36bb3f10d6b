"""Workloads from YAML, with errors that name the file, the line and the nearest valid name.

Error: bench.yaml:14: unknown key 'hiden'. Did you mean 'hidden'?
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from spbench.workload.sublayers import SUBLAYERS, Frozen
from spbench.workload.workload import Workload

MAX_BYTES = 100_000
MAX_DEPTH = 20  # the parser's time grows with the square of the nesting
MAX_INTEGER = 2**63
Path_ = tuple[str | int, ...]


class WorkloadError(ValueError):
    """A workload file or setting that cannot be used: where, why, and what would work."""


def load_file(path: Path) -> Workload:
    """The workload of a YAML file. Raises WorkloadError, and nothing else."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise WorkloadError(f"{path}: {error.strerror}") from None
    if len(raw) > MAX_BYTES:
        raise WorkloadError(f"{path}: too large; a workload is at most {MAX_BYTES} bytes")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise WorkloadError(f"{path}:{line}: not UTF-8 text") from None
    return load_text(text, str(path))


def load_text(text: str, where: str) -> Workload:
    """The workload of a YAML text; ``where`` stands for the file in messages."""
    lines: dict[Path_, int] = {}
    data = _plain_data(text, where, lines)
    if not isinstance(data, dict):
        kind = "nothing" if data is None else f"a {type(data).__name__}"
        raise WorkloadError(f"{where}:1: holds {kind}; a workload is a mapping of keys")
    return validated(data, where, lines)


def validated(data: Mapping[str, Any], where: str, lines: Mapping[Path_, int]) -> Workload:
    """``data`` as a Workload. Raises WorkloadError with the line of the offending key."""
    try:
        return Workload.model_validate(data)
    except ValidationError as error:
        # A mistyped key is also a missing one; what was typed says more.
        first = min(error.errors(), key=lambda one: one["type"] != "extra_forbidden")
        raise WorkloadError(_explain(first, where, lines)) from None


def _plain_data(text: str, where: str, lines: dict[Path_, int]) -> Any:
    try:
        _refuse_aliases_and_depth(text, where)
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        return None if node is None else _value(node, where, lines, ())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise WorkloadError(f"{where}:{line}: not YAML: {error.problem}") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise WorkloadError(
            f"{where}:{line}: not YAML: character U+{error.character:04X} is not allowed"
        ) from None


def _refuse_aliases_and_depth(text: str, where: str) -> None:
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        line = event.start_mark.line + 1 if event.start_mark else 1
        if isinstance(event, yaml.AliasEvent):
            raise WorkloadError(f"{where}:{line}: aliases (*{event.anchor}) are not allowed")
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise WorkloadError(f"{where}:{line}: nested more than {MAX_DEPTH} deep")


def _value(node: yaml.Node, where: str, lines: dict[Path_, int], path: Path_) -> Any:
    """Plain data of a node; notes the line of each path, refuses a key given twice."""
    lines[path] = node.start_mark.line + 1
    if isinstance(node, yaml.SequenceNode):
        return [_value(n, where, lines, (*path, i)) for i, n in enumerate(node.value)]
    if isinstance(node, yaml.MappingNode):
        found: dict[Any, Any] = {}
        for key_node, value_node in node.value:
            key = _value(key_node, where, lines, (*path, "?"))
            line = key_node.start_mark.line + 1
            if not isinstance(key, str):
                raise WorkloadError(f"{where}:{line}: key {key!r} is not a word")
            if key in found:
                raise WorkloadError(f"{where}:{line}: key {key!r} is given twice")
            found[key] = _value(value_node, where, lines, (*path, key))
            lines[(*path, key)] = line
        return found
    return _scalar(node, f"{where}:{lines[path]}")


def _scalar(node: yaml.Node, place: str) -> Any:
    """A number, a word, a truth. yaml raises whatever it likes for such as ``!!int ''``."""
    try:
        found = yaml.constructor.SafeConstructor().construct_object(node, deep=True)
    except yaml.YAMLError:
        raise
    except Exception:
        kind = node.tag.rpartition(":")[2]
        raise WorkloadError(f"{place}: {_short(node.value)} cannot be read as {kind}") from None
    if isinstance(found, int) and abs(found) >= MAX_INTEGER:
        raise WorkloadError(f"{place}: {_short(node.value)} is too large a number")
    return found


def _explain(error: Any, where: str, lines: Mapping[Path_, int]) -> str:
    """One sentence for pydantic's first error."""
    path = _without_tag(error["loc"])
    place = _place(where, lines, path)
    name = ".".join(map(str, path)) or "workload"
    match error["type"]:
        case "extra_forbidden":
            inside = SUBLAYERS.get(str(error["loc"][2])) if len(path) > 1 else None
            return f"{place}: {_unknown(path, inside or Workload)}"
        case "missing":
            return f"{place}: key {name!r} is missing"
        case "union_tag_not_found":
            given = error["input"]
            keys = list(given) if isinstance(given, dict) else [given]
            hint = nearest(str(keys[0]), list(SUBLAYERS)) if keys else ""
            return (
                f"{place}: {name} is not a sublayer: {given!r}. {hint} "
                f"Each is one of {', '.join(SUBLAYERS)}, as in '- attention: time'"
            )
        case "value_error":
            return f"{place}: {error['ctx']['error']}"
        case "literal_error":
            given, expected = error["input"], error["ctx"]["expected"]
            return f"{place}: {name} cannot be {given!r}; it may be {expected}"
        case _:
            message = error["msg"][0].lower() + error["msg"][1:]
            return f"{place}: {name} is {_short(error['input'])}: {message}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _without_tag(loc: Path_) -> Path_:
    """pydantic puts the chosen sublayer's tag behind its index: block, 3, mlp, mlp."""
    return (*loc[:2], *loc[3:]) if loc[:1] == ("block",) else loc


def _place(where: str, lines: Mapping[Path_, int], path: Path_) -> str:
    while path and path not in lines:
        path = path[:-1]
    return f"{where}:{lines[path]}" if path in lines else where


def _unknown(path: Path_, model: type[Frozen]) -> str:
    key = str(path[-1])
    if len(path) > 1 and key in SUBLAYERS:
        return f"two sublayers in one item; give {key} a '- ' of its own"
    known = [field.alias or name for name, field in model.model_fields.items()]
    return f"unknown key {key!r}. {nearest(key, known)}"


def nearest(word: str, known: Sequence[str]) -> str:
    """'Did you mean …?', or the whole list if nothing is near."""
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"Did you mean {close[0]!r}?" if close else f"Known: {', '.join(known)}"


def with_settings(workload: Workload, settings: Sequence[str]) -> Workload:
    """``workload`` with fields overridden by ``key=value`` texts, values read as YAML.

    ``axes.time=17`` reaches inside; ``block=[{attention: time}, {mlp: 4}]`` replaces whole.
    """
    data: dict[str, Any] = workload.model_dump(mode="python", by_alias=True)
    data["block"] = [dict(item) for item in data["block"]]
    for setting in settings:
        key, given, text = setting.partition("=")
        if not given:
            raise WorkloadError(f"--set {setting}: write key=value, as in --set depth=4")
        first, *inside = key.strip().split(".")
        if first not in Workload.model_fields:
            known = list(Workload.model_fields)
            raise WorkloadError(f"--set {setting}: unknown key {first!r}. {nearest(first, known)}")
        value = _plain_data(text, f"--set {setting}", {})
        if not inside:
            data[first] = value
            continue
        if not isinstance(data[first], dict) or len(inside) > 1:
            raise WorkloadError(f"--set {setting}: {first!r} has no parts; write {first}=value")
        if inside[0] not in data[first]:
            hint = nearest(inside[0], list(data[first]))
            raise WorkloadError(f"--set {setting}: there is no {first} {inside[0]!r}. {hint}")
        data[first] = data[first] | {inside[0]: value}
    return validated(data, " ".join(f"--set {setting}" for setting in settings), {})
