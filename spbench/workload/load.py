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
from spbench.workload.validation_errors import suggestion, unknown_key, validated
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
"""Fields with a column in the results; overrides of other fields are added to the name."""

EXAMPLES = {"attention": "time", "cross_attention": "120", "mlp": "4"}
FORMS = {
    "block": "a list of sublayers, as in '- attention: time'",
    "axes": "names with their lengths, as in {time: 16, space: 256}",
}
"""Forms of fields that are not plain values."""


def load_file(path: Path) -> Workload:
    """The workload of a YAML file. Raises WorkloadError, and nothing else."""
    return _loaded(read_mapping(path, "a workload"))


def load_text(text: str, where: str) -> Workload:
    """The workload of a YAML text; ``where`` stands for the file in messages."""
    return _loaded(parse_mapping(text, where, "a workload"))


def _loaded(data: YamlData) -> Workload:
    if data.value.keys() & {"workloads", "include"} and not data.value.keys() & {"block", "axes"}:
        raise data.error((), "this is a sweep; use 'spbench run --sweep'")
    return validated(Workload, data, _explain)


def _explain(error: Any) -> tuple[KeyPath, str | None]:
    """The path to blame and a message for errors in ``FORMS`` or in the block.

    Pydantic puts the sublayer's tag behind its index: block, 3, mlp, mlp.
    """
    path: KeyPath = error["loc"]
    if error["type"] in ("too_short", "tuple_type", "dict_type") and path in (
        ("block",),
        ("axes",),
    ):
        return path, f"{path[0]} is {short(error['input'])}: write {FORMS[str(path[0])]}"
    if path[:1] != ("block",):
        return path, None
    tag, path = path[2:3], (*path[:2], *path[3:])
    if error["type"] == "extra_forbidden":
        key = str(path[-1])
        if key in SUBLAYERS:
            return path, f"two sublayers in one item; give {key} a '- ' of its own"
        return path, unknown_key(key, SUBLAYERS[str(tag[0])])
    if error["type"] == "union_tag_not_found":
        return path, f"{'.'.join(map(str, path))} is not a sublayer: {_hint(error['input'])}"
    return path, None


def _hint(item: Any) -> str:
    """How to write an item of a block that is not a sublayer."""
    if isinstance(item, str) and item in EXAMPLES:
        return f"{short(item)}. Write '- {item}: {EXAMPLES[item]}'"
    keys = list(item) if isinstance(item, dict) else [item]
    hint = did_you_mean(str(keys[0]), list(SUBLAYERS)) if keys else ""
    forms = f"Each is one of {', '.join(SUBLAYERS)}, as in '- attention: time'"
    return " ".join(filter(None, (f"{short(item)}.", hint, forms)))


@dataclass(frozen=True, kw_only=True)
class Override:
    """A new value for a field of a workload, as in ``axes.time`` and 17."""

    key: str
    value: Any
    where: str
    """The flag or file that gives it."""
    line: int | None = None

    @property
    def text(self) -> str:
        """The form in which ``--set`` takes it."""
        if isinstance(self.value, str):
            return f"{self.key}={self.value}"
        flow = yaml.safe_dump(self.value, default_flow_style=True, width=10**6, sort_keys=False)
        return f"{self.key}={flow.strip().removesuffix('...').strip()}"

    def error(self, message: str) -> WorkloadError:
        place = self.where if self.line is None else f"{self.where}:{self.line}"
        return WorkloadError(f"{place}: {message}")


def with_settings(workload: Workload, settings: Sequence[str]) -> Workload:
    """``workload`` with fields overridden by texts ``key=value``, each value in YAML."""
    return overridden(workload, overrides_of(settings))


def overrides_of(settings: Sequence[str]) -> list[Override]:
    """The overrides of ``--set``, each ``key=value``."""
    overrides = []
    for setting in settings:
        where = f"--set {setting}"
        key, given, text = setting.partition("=")
        if not given:
            raise WorkloadError(f"{where}: write key=value, as in --set depth=4")
        overrides.append(Override(key=key.strip(), value=parse(text, where).value, where=where))
    return overrides


def overridden(workload: Workload, overrides: Sequence[Override]) -> Workload:
    """``workload`` with fields replaced, in order; ``axes.time`` replaces a part of ``axes``."""
    data: dict[str, Any] = workload.model_dump(mode="python", by_alias=True)
    data["block"] = [dict(item) for item in data["block"]]
    lines: dict[KeyPath, int] = {}
    for override in overrides:
        first, *inside = override.key.split(".")
        if first not in Workload.model_fields:
            if isinstance(data["axes"], dict) and first in data["axes"]:
                raise override.error(f"unknown key {first!r}. Did you mean 'axes.{first}'?")
            raise override.error(unknown_key(first, Workload))
        if override.line is not None:
            lines |= {(): override.line, (first, *inside): override.line}
        if not inside:
            data[first] = override.value
            continue
        if first == "positions":
            data[first] = _positions_by_axis(data[first], data["axes"])
        if not isinstance(data[first], dict) or len(inside) > 1:
            raise override.error(f"{first!r} has no parts; write {first}=value")
        if inside[0] not in data[first]:
            hint = suggestion(inside[0], list(data[first]))
            raise override.error(f"there is no axis {inside[0]!r}. {hint}")
        data[first] = data[first] | {inside[0]: override.value}
    where = " ".join(dict.fromkeys(override.where for override in overrides))
    return validated(Workload, YamlData(value=data, where=where, lines=lines), _explain)


def _positions_by_axis(positions: Any, axes: Any) -> Any:
    """Positions as a mapping with every axis, so that an override may replace any of them."""
    if not isinstance(axes, dict):
        return positions
    if isinstance(positions, dict):
        return dict.fromkeys(axes, "none") | positions
    return dict.fromkeys(axes, positions)


def with_settings_in_name(workload: Workload, overrides: Sequence[Override]) -> Workload:
    """``workload`` with its name extended by overrides that no column of the results shows."""
    texts = [each.text for each in overrides if each.key.split(".")[0] not in OWN_COLUMNS]
    return workload.model_copy(update={"name": " ".join([workload.name, *texts])})
