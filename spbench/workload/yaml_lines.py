"""YAML as plain data that knows the line of every key.

Nothing clever of YAML is let in: aliases, deep nesting, huge numbers and keys given twice are
refused. Whatever is wrong is a WorkloadError that begins with file and line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from spbench.errors import Failure

MAX_BYTES = 100_000
MAX_DEPTH = 20  # the parser's time grows with the square of the nesting
MAX_INTEGER = 2**63
MAX_SHOWN = 60
KeyPath = tuple[str | int, ...]


class WorkloadError(Failure, ValueError):
    """A workload, sweep or setting that cannot be used: where, why, and what would work."""


@dataclass(frozen=True, kw_only=True)
class YamlData:
    """Plain data, and on which line each part of it was written."""

    value: Any
    where: str
    """Stands for the file in messages."""
    lines: Mapping[KeyPath, int] = field(default_factory=dict)

    def line(self, path: KeyPath) -> int | None:
        """Of the deepest part of ``path`` that was written; None if none was."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path)

    def written(self, paths: Sequence[KeyPath]) -> KeyPath:
        """The first of ``paths`` of which some part was written; else the first."""
        parts = ((path, path[:n]) for path in paths for n in range(1, len(path) + 1))
        return next((path for path, part in parts if part in self.lines), paths[0])

    def at(self, path: KeyPath) -> str:
        """``file:line`` of ``path``."""
        line = self.line(path)
        return self.where if line is None else f"{self.where}:{line}"


def read_mapping(path: Path, what: str) -> YamlData:
    """The mapping that a file holds; ``what`` says what it should be, as in 'a workload'."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except IsADirectoryError:
        raise WorkloadError(f"{path}:1: is a folder; {what} is a YAML file") from None
    except OSError as error:
        raise WorkloadError(f"{path}: {error.strerror}") from None
    except ValueError:  # NUL, or what no file system can encode
        raise WorkloadError(f"{str(path)!a}: not a name of a file") from None
    if len(raw) > MAX_BYTES:
        raise WorkloadError(f"{path}:1: too large; {what} is at most {MAX_BYTES} bytes")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise WorkloadError(f"{path}:{line}: not UTF-8 text") from None
    return parse_mapping(text, str(path), what)


def parse_mapping(text: str, where: str, what: str) -> YamlData:
    """The mapping that a text holds."""
    data = parse(text, where)
    if not isinstance(data.value, dict):
        kind = "nothing" if data.value is None else f"a {type(data.value).__name__}"
        raise WorkloadError(f"{where}:1: holds {kind}; {what} is a mapping of keys")
    return data


def parse(text: str, where: str) -> YamlData:
    """Whatever a text holds."""
    lines: dict[KeyPath, int] = {}
    try:
        _refuse_aliases_and_depth(text, where)
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        value = None if node is None else _value(node, where, lines, ())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise WorkloadError(f"{where}:{line}: not YAML: {error.problem}") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise WorkloadError(
            f"{where}:{line}: not YAML: character U+{error.character:04X} is not allowed"
        ) from None
    return YamlData(value=value, where=where, lines=lines)


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


def _value(node: yaml.Node, where: str, lines: dict[KeyPath, int], path: KeyPath) -> Any:
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
                raise WorkloadError(f"{where}:{line}: key {short(key)} is not a word")
            if key in found:
                raise WorkloadError(f"{where}:{line}: key {short(key)} is given twice")
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
        raise WorkloadError(f"{place}: {short(node.value)} cannot be read as {kind}") from None
    if isinstance(found, int) and abs(found) >= MAX_INTEGER:
        raise WorkloadError(f"{place}: {short(node.value)} is too large a number")
    return found


def short(value: object) -> str:
    """A value as messages show it, at most ``MAX_SHOWN`` characters."""
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}..."
