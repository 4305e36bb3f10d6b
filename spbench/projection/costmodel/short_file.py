"""A cluster as a file that is like another one: only what differs, an operation in a line or two.

What a file leaves out it has from the file that it is like, and a level's operations also from the
level within. So a file is written, read back, and given those operations that came out otherwise.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from spbench.projection.costmodel.cluster_file import find, read
from spbench.projection.costmodel.constants import CollectiveRate, Constant, Level
from spbench.projection.costmodel.hardware import Cluster
from spbench.workload.config_names import names
from spbench.workload.traffic import OPS, Op
from spbench.workload.yaml_file import parse_mapping

OWN = ("source", "drawn_as", "drawn_together", "sources")
"""Fields of a cluster that a file may have beside its name and its levels."""
OF_A_LEVEL = ("ranks", "shared_gb_per_s", "scattered", "to_each")
NEW_LINE = "\n        "
Data = dict[str, Any]
Entries = set[tuple[str, Op]]
"""Operations that a file gives, each by its level and name."""


def short_text(cluster: Cluster, like: str, folder: Path) -> str:
    """The text of a file for this folder, which reads as the cluster.

    Parameters
    ----------
    cluster
        A cluster that differs in its links alone, and has been timed on one number of ranks.
    like
        The name or the file of the cluster from which it differs.
    folder
        Where the file will lie: the file that it is like is named from there.

    Raises
    ------
    ValueError
        The cluster differs in more than a short file says.
    """
    base = find(like)
    named = like if like in names("clusters") else os.path.relpath(Path(like).absolute(), folder)
    named = named if "/" in named or named in names("clusters") else f"./{named}"
    entries: Entries = set()
    for _ in range(len(cluster.levels) + 1):  # an operation goes on to the levels around its own
        text = _written(cluster, base, named, entries)
        made = read(parse_mapping(text, cluster.name, "a cluster"), folder)
        others = {
            (level.name, op)
            for level in cluster.levels
            for op in OPS
            if _of(made, level.name, op) != level.collectives[op]
        }
        if not others:
            break
        entries |= others
    if made != cluster:
        raise ValueError(f"{cluster.name} differs from {like} in more than its links")
    return text


def _of(cluster: Cluster, name: str, op: Op) -> CollectiveRate | None:
    """An operation of the level of that name; None where there is none."""
    return next((x.collectives[op] for x in cluster.levels if x.name == name), None)


def _written(cluster: Cluster, base: Cluster, like: str, entries: Entries) -> str:
    """The text with these operations, and all else that differs from the base."""
    lines = ["version: 1", _line("name", cluster.name), _line("like", like)]
    own, known = (each.model_dump(mode="json", exclude_defaults=True) for each in (cluster, base))
    for name in OWN:
        value, below = own.get(name), known.get(name)
        if name == "sources" or value == below:
            continue
        if name == "drawn_together":
            groups = value or []
            lines.append(f"{name}:" + ("" if groups else " []"))
            lines += [f"  - {_flow(group)}" for group in groups]
        else:
            lines.append(_line(name, value))
    levels = [line for level in cluster.levels for line in _level(level, base, entries)]
    lines += ["levels:", *levels] if levels else []
    sources = {key: text for key, text in cluster.sources.items() if base.sources.get(key) != text}
    lines += ["sources:", *(f"  {_line(*item)}" for item in sources.items())] if sources else []
    return "\n".join(lines) + "\n"


def _level(level: Level, base: Cluster, entries: Entries) -> list[str]:
    """Lines of a level; none where all is as in the base."""
    below = next((each for each in base.levels if each.name == level.name), None)
    lines = []
    for name in OF_A_LEVEL:
        value = getattr(level, name)
        if value != (getattr(below, name) if below else Level.model_fields[name].default):
            is_constant = isinstance(value, Constant)
            lines.append(f"    {_line(name, _constant(value) if is_constant else value)}")
    ops = [op for op in OPS if (level.name, op) in entries]
    if ops:
        lines.append("    collectives:")
    for op in ops:
        rate, before = level.collectives[op], below and below.collectives[op]
        first, second = _operation(rate, before)
        is_new = before is None or before.latency_us != rate.latency_us
        lines += f"      {op}: {{{first},{NEW_LINE if is_new else ' '}{second}}}".split("\n")
    return [f"  {level.name}:", *lines] if lines else []


def _operation(rate: CollectiveRate, below: CollectiveRate | None) -> tuple[str, str]:
    """What a rate says beside its curve, and the curve. What the base has and this has not is said,
    too: it would stay."""
    own = rate.model_dump(mode="json")
    before = below.model_dump(mode="json") if below else {}
    defaults = {"hop_us": None, "shared": 0.0, "hidden": None, "hides": 1.0}
    parts = {"latency_us": _constant(rate.latency_us)}
    for name, default in defaults.items():
        if own[name] != default or before.get(name, default) != default:
            is_constant = name == "hop_us" and rate.hop_us is not None
            parts[name] = _constant(rate.hop_us) if is_constant else own[name]
    curve = _flow({"gb_per_s": _plain(rate.gb_per_s.model_dump(mode="json"))})
    return _flow(parts)[1:-1], curve[1:-1]


def _constant(constant: Constant | None) -> Data:
    assert constant is not None
    return _plain(constant.model_dump(mode="json"))


def _plain(constant: Mapping[str, Any]) -> Data:
    """A constant's number first, without what is as ever."""
    first = {key: constant[key] for key in ("value", "at", "values") if key in constant}
    return first | {key: value for key, value in constant.items() if value not in (None, "")}


def _line(key: str, value: Any) -> str:
    """``key: value`` in one line."""
    return _flow({key: value})[1:-1]


def _flow(value: Any) -> str:
    """A value in YAML, in one line whatever its length."""
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10**6)
    return text.strip().removesuffix("...").strip()
