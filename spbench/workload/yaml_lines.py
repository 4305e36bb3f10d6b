"""YAML as plain data with the line of every key.

Aliases, deep nesting, huge numbers and keys given twice are refused. Every error is a
WorkloadError that begins with file and line.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from yaml.composer import Composer

from spbench.errors import Failure
from spbench.text import did_you_mean

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
        node = _Loader(text, where).root()
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


class _Loader(Parser, Composer):
    """Refuses aliases and deep nesting while it reads; libyaml's own composer could not."""

    def __init__(self, text: str, where: str) -> None:
        super().__init__(text)
        Composer.__init__(self)
        self.where, self.depth = where, 0

    def root(self) -> yaml.Node | None:
        return Composer.get_single_node(self)

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event: Any = self.peek_event()
        place = f"{self.where}:{event.start_mark.line + 1}"
        if isinstance(event, yaml.AliasEvent):
            raise WorkloadError(f"{place}: aliases (*{event.anchor}) are not allowed")
        self.depth += 1
        if self.depth > MAX_DEPTH and isinstance(event, yaml.CollectionStartEvent):
            raise WorkloadError(f"{place}: nested more than {MAX_DEPTH} deep")
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


def _value(node: yaml.Node, where: str, lines: dict[KeyPath, int], path: KeyPath) -> Any:
    """Plain data of a node. Enters the line of each path; refuses keys given twice."""
    lines[path] = node.start_mark.line + 1
    if isinstance(node, yaml.SequenceNode):
        return [_value(n, where, lines, (*path, i)) for i, n in enumerate(node.value)]
    if isinstance(node, yaml.MappingNode):
        mapping: dict[Any, Any] = {}
        for key_node, value_node in node.value:
            key = _value(key_node, where, lines, (*path, "?"))
            line = key_node.start_mark.line + 1
            if not isinstance(key, str):
                raise WorkloadError(f"{where}:{line}: key {short(key)} is not a word")
            if key in mapping:
                raise WorkloadError(f"{where}:{line}: key {short(key)} is given twice")
            mapping[key] = _value(value_node, where, lines, (*path, key))
            lines[(*path, key)] = line
        return mapping
    return _scalar(node, f"{where}:{lines[path]}")


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
