"""Workloads from YAML, with errors that name the file, the line and the nearest valid name.

Error: bench.yaml:14: unknown key 'hiden'. Did you mean 'hidden'?
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from spbench.text import did_you_mean
from spbench.workload.block import SUBLAYERS
from spbench.workload.validation_errors import nearest, unknown_key, validated
from spbench.workload.workload import Workload
from spbench.workload.yaml_lines import (
    KeyPath,
    WorkloadError,
    YamlData,
    parse,
    parse_mapping,
    read_mapping,
    short,
)

OWN_COLUMNS = ("name", "source", "axes", "batch", "dtype", "mode", "checkpointing")
"""Fields that every row of results shows; what else is overridden is shown in the name."""


EXAMPLES = {"attention": "time", "cross_attention": "120", "mlp": "4"}
FORMS = {
    "block": "a list of sublayers, as in '- attention: time'",
    "axes": "names with their lengths, as in {time: 16, space: 256}",
}
"""What a field is that is not a plain value."""


def load_file(path: Path) -> Workload:
    """The workload of a YAML file. Raises WorkloadError, and nothing else."""
    return _loaded(read_mapping(path, "a workload"))


def load_text(text: str, where: str) -> Workload:
    """The workload of a YAML text; ``where`` stands for the file in messages."""
    return _loaded(parse_mapping(text, where, "a workload"))


def _loaded(data: YamlData) -> Workload:
    if data.value.keys() & {"workloads", "include"} and not data.value.keys() & {"block", "axes"}:
        raise WorkloadError(f"{data.at(())}: this is a sweep; use 'spbench run --sweep'")
    return validated(Workload, data, _of_block)


def _of_block(error: Any) -> tuple[KeyPath, str | None]:
    """pydantic puts the chosen sublayer's tag behind its index: block, 3, mlp, mlp."""
    path: KeyPath = error["loc"]
    if error["type"] in ("too_short", "tuple_type", "dict_type") and len(path) == 1:
        key = str(path[0])
        return (
            path,
            f"{key} is {short(error['input'])}: write {FORMS[key]}" if key in FORMS else None,
        )
    if path[:1] != ("block",):
        return path, None
    tag, path = path[2:3], (*path[:2], *path[3:])
    if error["type"] == "extra_forbidden":
        key = str(path[-1])
        if key in SUBLAYERS:
            return path, f"two sublayers in one item; give {key} a '- ' of its own"
        return path, unknown_key(key, SUBLAYERS[str(tag[0])])
    if error["type"] == "union_tag_not_found":
        given = error["input"]
        said = f"{'.'.join(map(str, path))} is not a sublayer: {short(given)}. "
        if isinstance(given, str) and given in EXAMPLES:
            return path, f"{said}Write '- {given}: {EXAMPLES[given]}'"
        keys = list(given) if isinstance(given, dict) else [given]
        hint = did_you_mean(str(keys[0]), list(SUBLAYERS)) if keys else ""
        each = f"Each is one of {', '.join(SUBLAYERS)}, as in '- attention: time'"
        return path, said + (f"{hint} {each}" if hint else each)
    return path, None


@dataclass(frozen=True, kw_only=True)
class Override:
    """A field of a workload and what it is to be, as in ``axes.time`` and 17."""

    key: str
    value: Any
    where: str
    """The flag or the file that says so."""
    line: int | None = None

    @property
    def text(self) -> str:
        """As after ``--set``."""
        shown = self.value
        if not isinstance(shown, str):
            flow = yaml.safe_dump(shown, default_flow_style=True, width=10**6, sort_keys=False)
            shown = flow.removesuffix("...\n").strip()
        return f"{self.key}={shown}"

    def error(self, why: str) -> WorkloadError:
        place = self.where if self.line is None else f"{self.where}:{self.line}"
        return WorkloadError(f"{place}: {why}")


def with_settings(workload: Workload, settings: Sequence[str]) -> Workload:
    """``workload`` with fields overridden by ``key=value`` texts, values read as YAML."""
    return overridden(workload, overrides_of(settings))


def overrides_of(settings: Sequence[str]) -> list[Override]:
    """What ``--set`` asks for, each ``key=value``."""
    found = []
    for setting in settings:
        where = f"--set {setting}"
        key, given, text = setting.partition("=")
        if not given:
            raise WorkloadError(f"{where}: write key=value, as in --set depth=4")
        found.append(Override(key=key.strip(), value=parse(text, where).value, where=where))
    return found


def overridden(workload: Workload, overrides: Sequence[Override]) -> Workload:
    """``workload`` with fields replaced, in order.

    ``axes.time`` reaches inside; ``block`` replaces whole.
    """
    data: dict[str, Any] = workload.model_dump(mode="python", by_alias=True)
    data["block"] = [dict(item) for item in data["block"]]
    lines: dict[KeyPath, int] = {}
    for one in overrides:
        first, *inside = one.key.split(".")
        if first not in Workload.model_fields:
            if isinstance(data["axes"], dict) and first in data["axes"]:
                raise one.error(f"unknown key {first!r}. Did you mean 'axes.{first}'?")
            raise one.error(unknown_key(first, Workload))
        if one.line is not None:
            lines |= {(): one.line, (first, *inside): one.line}
        if not inside:
            data[first] = one.value
            continue
        if first == "positions":
            data[first] = _of_each_axis(data[first], data["axes"])
        if not isinstance(data[first], dict) or len(inside) > 1:
            raise one.error(f"{first!r} has no parts; write {first}=value")
        if inside[0] not in data[first]:
            hint = nearest(inside[0], list(data[first]))
            raise one.error(f"there is no axis {inside[0]!r}. {hint}")
        data[first] = data[first] | {inside[0]: one.value}
    where = " ".join(dict.fromkeys(one.where for one in overrides))
    return validated(Workload, YamlData(value=data, where=where, lines=lines), _of_block)


def _of_each_axis(positions: Any, axes: Any) -> Any:
    """Positions as a mapping that has every axis, so that a setting may reach any of them."""
    if not isinstance(axes, dict):
        return positions
    if isinstance(positions, dict):
        return dict.fromkeys(axes, "none") | positions
    return dict.fromkeys(axes, positions)


def with_settings_in_name(workload: Workload, overrides: Sequence[Override]) -> Workload:
    """``workload`` with what no column of the results shows in its name."""
    shown = [one.text for one in overrides if one.key.split(".")[0] not in OWN_COLUMNS]
    return workload.model_copy(update={"name": " ".join([workload.name, *shown])})
