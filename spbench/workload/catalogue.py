"""Workloads by name or from a file, and with fields overridden.

Errors name the file, the line and the nearest valid name:

    Error: bench.yaml:14: unknown key 'hiden'. Did you mean 'hidden'?
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from spbench.text import quoted
from spbench.workload.block import PARTS
from spbench.workload.config_names import configs, names
from spbench.workload.workload import Workload
from spbench.workload.yaml_file import (
    KeyPath,
    WorkloadError,
    YamlData,
    parse,
    parse_mapping,
    read_mapping,
    short,
    suggestion,
    unknown_key,
    validated,
)

SWEEP = "'spbench run --sweep'"
SMALL = "-small"
"""Ending of the name of a workload's small form."""
OWN_COLUMNS: tuple[str, ...] = ("name", "source", "axes", "batch", "guidance", "dtype")
OWN_COLUMNS += ("mode", "checkpointing", "optimizer")
"""Fields with a column in the results; overrides of other fields are added to the name."""


def find(name_or_file: str, kind: str = "workloads", folder: Path | None = None) -> Workload:
    """A workload of the catalogue, or of the user's file. Raises WorkloadError."""
    return load_file(path_of(name_or_file, kind, folder))


def path_of(name_or_file: str, kind: str, folder: Path | None = None) -> Path:
    """The file of a name in the catalogue, or the named file, relative to ``folder``."""
    if name_or_file.endswith((".yaml", ".yml", ".json")) or "/" in name_or_file:
        return (folder or Path()) / name_or_file
    if name_or_file not in names(kind):
        what = {"sweeps": "sweep", "clusters": "cluster"}.get(kind, "workload")
        other, use = ("workload", "--workload") if kind == "sweeps" else ("sweep", SWEEP)
        if what != "cluster" and name_or_file in names(f"{other}s"):
            raise WorkloadError(f"{name_or_file!r} is a {other}; use {use}")
        if kind == "workloads" and name_or_file in names("verify"):
            raise WorkloadError(
                f"{name_or_file!r} is a shape of 'spbench verify'; elsewhere give a workload of "
                "the catalogue, or a file"
            )
        hint = suggestion(name_or_file, names(kind))
        if what == "cluster":
            own = (
                "A cluster of your own goes by its file, as in -c results/clusters/mine.yaml: "
                "'spbench calibrate mine' writes one on the machine, "
                f"{init_cluster('hgx-h100')} one of its logs, and docs/adding-a-cluster.md shows "
                "one of a few lines"
            )
            hint = f"{hint}{'' if hint.endswith('?') else '.'} {own}"
        raise WorkloadError(f"unknown {what} {short(name_or_file)}. {hint}")
    return configs() / kind / f"{name_or_file}.yaml"


def init_cluster(like: str) -> str:
    """The command that writes a cluster of logs of nccl-tests, in quotation marks."""
    return f"'spbench init --cluster mine --like {like} --from nccl-logs/*'"


def load_file(path: Path) -> Workload:
    """The workload of a YAML file. Raises WorkloadError, and nothing else."""
    return _loaded(read_mapping(path, "a workload"))


def load_text(text: str, where: str) -> Workload:
    """The workload of a YAML text; ``where`` stands for the file in messages."""
    return _loaded(parse_mapping(text, where, "a workload"))


def _loaded(data: YamlData) -> Workload:
    if data.value.keys() & {"workloads", "include"} and not data.value.keys() & {"block", "axes"}:
        raise data.error((), f"this is a sweep; use {SWEEP}")
    if data.value.keys() & {"_class_name", "model_type"} and "axes" not in data.value:
        make = quoted("spbench", "init", "my-model", "--from", data.where)
        raise data.error(
            (), f"this is a config.json of Hugging Face; make a workload of it: {make}"
        )
    return validated(Workload, data, PARTS)


def small_form(name: str, work: Workload) -> Workload:
    """The small form of ``name`` in the catalogue, with what ``work`` changes of it.

    Axes and batch are longer or shorter in proportion, other fields as ``work`` has them. Raises
    WorkloadError where there is no small form.
    """
    if name.endswith(SMALL):
        return work
    if f"{name}{SMALL}" not in names():
        raise WorkloadError(f"{name!r} has no small form; --small is for names of the catalogue")
    full, small = find(name), find(f"{name}{SMALL}")
    if work.axes.keys() != full.axes.keys():
        raise WorkloadError(f"other axes than those of {name!r} have no small form; leave out axes")

    def scaled(mine: int, wanted: int, whole: int) -> int:
        return max(1, round(mine * wanted / whole))

    axes = {axis: scaled(n, work.axes[axis], full.axes[axis]) for axis, n in small.axes.items()}
    was, now = (each.model_dump(mode="json", by_alias=True) for each in (full, work))
    data = small.model_dump(mode="json", by_alias=True)
    data |= {field: value for field, value in now.items() if value != was[field]}
    data |= {"axes": axes, "batch": scaled(small.batch, work.batch, full.batch)}
    data["name"] = small.name + work.name.removeprefix(full.name)
    where = f"{small.name}, the small form of {work.name}"
    return validated(Workload, YamlData(value=data, where=where, lines={}), PARTS)


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


def refuse_undone(overrides: Sequence[Override]) -> None:
    """Raises WorkloadError for an override that a later one would undo, as depth=2 before depth=3,
    or axes.time=8 before axes={...}: on a command line one of the two is a mistake."""
    for earlier, later in itertools.combinations(overrides, 2):
        is_again = earlier.key == later.key and earlier.value != later.value
        if is_again or earlier.key.startswith(f"{later.key}."):
            undone = f"{earlier.text} would be undone; give the one that counts"
            raise later.error(f"{later.key} is given twice: {undone}")


def overridden(workload: Workload, overrides: Sequence[Override]) -> Workload:
    """``workload`` with fields replaced, in order; ``axes.time`` replaces a part of ``axes``."""
    data: dict[str, Any] = workload.model_dump(mode="json", by_alias=True)
    lines: dict[KeyPath, int] = {}
    for override in overrides:
        first, *inside = override.key.split(".")
        if override.line is not None:
            lines |= {(): override.line, (first, *inside): override.line}
        data[first] = _replaced(data, first, inside, override)
    where = " ".join(dict.fromkeys(override.where for override in overrides))
    return validated(Workload, YamlData(value=data, where=where, lines=lines), PARTS)


def _replaced(data: dict[str, Any], first: str, inside: list[str], override: Override) -> Any:
    """The new value of field ``first``, or of one axis ``inside`` it."""
    if first not in Workload.model_fields:
        if isinstance(data["axes"], dict) and first in data["axes"]:
            raise override.error(f"unknown key {first!r}. Did you mean 'axes.{first}'?")
        raise override.error(unknown_key(first, Workload))
    if not inside:
        if first == "stacks":  # in place of the short form
            data |= {"depth": None, "block": None}
        return override.value
    parts = data[first]
    if first == "stacks" and parts is not None:
        return _with_one_changed(parts, inside, override)
    if first == "positions" and isinstance(data["axes"], dict):
        known = parts if isinstance(parts, dict) else dict.fromkeys(data["axes"], parts)
        parts = dict.fromkeys(data["axes"], "none") | known
    if not isinstance(parts, dict) or len(inside) > 1:
        raise override.error(f"{first!r} has no parts; write {first}=value")
    if inside[0] not in parts:
        raise override.error(
            f"there is no axis {inside[0]!r}. {suggestion(inside[0], list(parts))}"
        )
    return parts | {inside[0]: override.value}


def _with_one_changed(stacks: list[Any], inside: list[str], override: Override) -> list[Any]:
    """The stacks with a field of one of them replaced, as in ``stacks.0.depth``."""
    number, *fields = inside
    if number not in map(str, range(len(stacks))) or len(fields) != 1:
        raise override.error(f"write stacks.N.depth or stacks.N.block, N below {len(stacks)}")
    changed = {int(number): stacks[int(number)] | {fields[0]: override.value}}
    return [changed.get(i, stack) for i, stack in enumerate(stacks)]


def with_settings_in_name(workload: Workload, overrides: Sequence[Override]) -> Workload:
    """``workload`` with its name extended by overrides that no column of the results shows."""
    own = (each.text for each in overrides if each.key.split(".")[0] not in OWN_COLUMNS)
    texts = dict.fromkeys(own)  # what is given twice alike is one thing
    return workload.model_copy(update={"name": " ".join([workload.name, *texts])})
