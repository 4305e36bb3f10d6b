"""Files of clusters, short by what they share: what a file says, and what it leaves to another.

    like: hgx-h100      all of that file, or of a family (gpu, nvlink, pcie); what follows is
                        laid over it, mapping by mapping. A constant that is another has a source of
                        its own: it never keeps that of the one it replaces.
    levels, attention   mappings by name, which are lists by rank and by kernel afterwards
    all_gather, p2p: …  one entry for several operations
    {value: 700, shape: products, …}   a figure of a data sheet, and how it depends on a size: the
                        ``shapes`` of a family hold parts by microseconds at the full rate, by MB or
                        by keys. Without ``shape``, ``at`` and ``values`` are a table.

A level that lacks operations has those of the level within, by the same constants.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from spbench.projection.costmodel.constants import CollectiveRate, Level, Together, rounded
from spbench.projection.costmodel.hardware import AttentionRates, Cluster, Device, OnRanks, Products
from spbench.workload.block import Frozen
from spbench.workload.catalogue import path_of
from spbench.workload.config_names import configs
from spbench.workload.traffic import OPS
from spbench.workload.yaml_file import WorkloadError, YamlData, read_mapping, short, validated

MOST_BYTES = 4_000_000  # of a file: each number of ranks that was timed takes some 30 KB
MOST_FILES = 8
"""Files that stand behind each other by ``like``, at most: more are a circle."""
NAMED_TOGETHER = ("collectives", "tflops")
"""Mappings whose entries may have several names, as 'all_gather, p2p'."""
Data = dict[str, Any]
PARTS: dict[str, type[Frozen]] = {
    "device": Device,
    "products": Products,
    "attention": AttentionRates,
    "levels": Level,
    "collectives": CollectiveRate,
    "on_ranks": OnRanks,
    "drawn_together": Together,
}  # parts of a cluster that have keys of their own


def find(name_or_file: str) -> Cluster:
    """A packaged cluster by name, or that of a file. Raises WorkloadError with the wrong line."""
    path = path_of(name_or_file, "clusters")
    return read(read_mapping(path, "a cluster", MOST_BYTES), path.parent)


def read(data: YamlData, folder: Path) -> Cluster:
    """The cluster of a file's data; ``folder``: where a file that it is like is looked for. Raises
    WorkloadError with the wrong line."""
    whole = _with_like(data, folder, 0)
    shapes = _mapping(whole.pop("shapes", {}), ("shapes",), data)
    return validated(Cluster, replace(data, value=_expanded(whole, shapes, data)), PARTS)


def _with_like(data: YamlData, folder: Path, depth: int) -> Data:
    """The data of a file laid over that of the one that it is like."""
    own = dict(data.value)
    name = own.pop("like", None)
    if name is None:
        return own
    if not isinstance(name, str):
        raise data.error(("like",), f"like: {short(str(name))} is no name of a cluster or a file")
    if depth == MOST_FILES:
        raise data.error(("like",), f"like: {name}: files that are like each other in a circle")
    family = configs() / "clusters" / "families" / f"{name}.yaml"
    try:
        path = family if family.exists() and "/" not in name else path_of(name, "clusters", folder)
        other = read_mapping(path, "a cluster", MOST_BYTES)
    except WorkloadError as error:
        raise data.error(("like",), f"like: {error}") from None
    return _over(_with_like(other, path.parent, depth + 1), own, (), data)


def _over(below: Data, above: Mapping[str, Any], path: tuple[str, ...], data: YamlData) -> Data:
    """A mapping over another one."""
    if "source" in below and "source" not in above and path and "name" not in below:
        raise data.error(
            path,
            f"{'.'.join(path)} is another constant than that of the file it is like: give its own "
            "'source' and 'kind'",
        )
    if {"at", "values"} & above.keys() or "value" in above:  # a constant: nothing is left of it
        return dict(above)
    if path and path[-1] in NAMED_TOGETHER:
        # Else an entry of one operation would lose to an older one that names it beside others.
        below, above = _by_each(below), _by_each(above)
    merged = dict(below)
    for key, value in above.items():
        under = merged.get(key)
        if isinstance(value, Mapping) and isinstance(under, Mapping):
            merged[key] = _over(dict(under), value, (*path, str(key)), data)
        else:
            merged[key] = value
    return merged


def _expanded(whole: Data, shapes: Mapping[str, Any], data: YamlData) -> Data:
    """The data as its classes have it."""
    levels = whole.get("levels")
    if isinstance(levels, Mapping):
        whole["levels"] = _levels(levels, data)
    if isinstance(device := whole.get("device"), Mapping):
        whole["device"] = _device(device, shapes, data)
    if isinstance(parts := whole.get("on_ranks"), list):
        whole["on_ranks"] = [
            {**part, "device": _device(part["device"], shapes, data)}
            if isinstance(part, Mapping) and isinstance(part.get("device"), Mapping)
            else part
            for part in parts
        ]
    shaped: Data = _shaped(whole, shapes, data, ())
    return shaped


def _device(device: Mapping[str, Any], shapes: Mapping[str, Any], data: YamlData) -> Data:
    """A device with a table for each attention, and each type of a product by itself."""
    own = dict(device)
    if isinstance(attention := own.get("attention"), Mapping):
        own["attention"] = _attention(attention, shapes, data)
    products = own.get("products")
    if isinstance(products, Mapping) and isinstance(rates := products.get("tflops"), Mapping):
        own["products"] = {**products, "tflops": _by_each(rates)}
    return own


def _mapping(value: Any, path: tuple[Any, ...], data: YamlData) -> Mapping[str, Any]:
    """A part that has keys of its own. Raises WorkloadError for any other."""
    if not isinstance(value, Mapping):
        name = ".".join(map(str, path))
        raise data.error(path, f"{name} is {short(value)}: write keys with values, as {{key: 1}}")
    return value


def _by_each(entries: Mapping[str, Any]) -> Data:
    """Entries of several names, such as 'all_gather, p2p', by each of these."""
    return {name.strip(): entry for names_, entry in entries.items() for name in names_.split(",")}


def _levels(levels: Mapping[str, Any], data: YamlData) -> list[Any]:
    """Levels by rising ranks, each with its name and all of its operations. One that a file sets to
    null, of those of the file that it is like, is left out."""
    named = [
        {"name": name, **_mapping(level, ("levels", name), data)}
        for name, level in levels.items()
        if level is not None
    ]
    rising = sorted(named, key=_ranks_of)
    within: Data = {}
    for level in rising:
        path = "levels", level["name"]
        own = _by_each(_mapping(level.get("collectives") or {}, (*path, "collectives"), data))
        # What an operation gives itself comes before what the level gives all of them.
        shared = _mapping(level.pop("latency", None) or {}, (*path, "latency"), data)
        for op in OPS:
            if op in own:
                given = _mapping(own[op], (*path, "collectives", op), data)
                own[op] = {**_latency(shared, op), **given}
        within = {**within, **own}
        level["collectives"] = within
    return rising


def _ranks_of(level: Mapping[str, Any]) -> float:
    """Ranks that a level joins, any number last; what is no number is refused later."""
    ranks = level.get("ranks")
    return ranks if isinstance(ranks, int) else float("inf")


def _latency(latency: Mapping[str, Any], op: str) -> Data:
    """Latency and hop of an operation from the level's one entry for all."""
    about = {key: value for key, value in latency.items() if key not in ("us", "hop_us")}
    parts: Data = {}
    for name, key in (("latency_us", "us"), ("hop_us", "hop_us")):
        known = latency.get(key)
        value = known.get(op) if isinstance(known, Mapping) else known
        if value is not None:
            parts[name] = {"value": value, **about}
    return parts


def _attention(kernels: Mapping[str, Any], shapes: Mapping[str, Any], data: YamlData) -> list[Data]:
    """A table for each kernel, head size and direction."""
    keys = shapes.get("keys", [])
    tables = []
    for kernel, sizes in kernels.items():
        of_kernel = _mapping(sizes or {}, ("device", "attention", kernel), data)
        for named, rates in of_kernel.items():
            size = named.removeprefix("d")
            if not size.isdigit() or not isinstance(rates, Mapping):
                path = "device", "attention", kernel, named
                raise data.error(path, f"{short(named)} is no head size; write it as in 'd128: {{'")
            about = {k: v for k, v in rates.items() if k not in ("forward", "backward", "masked")}
            dtype = about.pop("dtype", "bfloat16")
            at = about.pop("keys", keys)
            for direction in ("forward", "backward"):
                if (known := rates.get(direction)) is None:
                    continue
                if isinstance(known, Mapping):  # with a source of its own
                    curve = {**about, "at": at, **known}
                elif isinstance(known, list):
                    curve = {"at": at, "values": known, **about}
                else:
                    curve = {"value": known, "shape": f"{direction} {size}", **about}
                table = {"kernel": kernel, "head_dim": int(size), "dtype": dtype, "tflops": curve}
                table["is_backward"] = direction == "backward"
                if (masked := rates.get("masked", shapes.get("masked"))) is not None:
                    table["masked"] = masked
                tables.append(table)
    return tables


def _shaped(value: Any, shapes: Mapping[str, Any], data: YamlData, path: tuple[Any, ...]) -> Any:
    """A value with each figure that has a ``shape`` written out by sizes."""
    if isinstance(value, list):
        return [_shaped(each, shapes, data, (*path, i)) for i, each in enumerate(value)]
    if not isinstance(value, Mapping):
        return value
    if "shape" in value and "at" not in value:
        return _by_size(value, shapes, data, path)
    return {key: _shaped(each, shapes, data, (*path, key)) for key, each in value.items()}


def _by_size(
    figure: Mapping[str, Any], shapes: Mapping[str, Any], data: YamlData, path: tuple[Any, ...]
) -> Data:
    """A figure of a data sheet by the family's shape. Sizes in microseconds at the full rate are
    GFLOP of a product: TFLOP/s times microseconds are MFLOP."""
    name, full = figure["shape"], figure.get("value")
    shape = shapes.get(name) if isinstance(name, str) else None
    if shape is None:
        raise data.error(
            path, f"shape {short(str(name))} is not one of {', '.join(map(str, shapes))}"
        )
    if isinstance(full, bool) or not isinstance(full, int | float) or full <= 0:
        raise data.error(path, f"value: {short(str(full))} is no rate; give a number above 0")
    in_us = isinstance(shape, Mapping) and "at_us" in shape
    sizes, parts = _numbers(shape, "at_us" if in_us else "at"), _numbers(shape, "parts")
    if not sizes or len(sizes) != len(parts):
        raise data.error(
            ("shapes", name),
            f"shape {name}: give sizes in 'at' (or microseconds in 'at_us') and as many 'parts'",
        )
    at = [rounded(full * us / 1e3) for us in sizes] if in_us else sizes
    about = {key: each for key, each in figure.items() if key != "value"}
    return {**about, "at": at, "values": [rounded(full * part) for part in parts]}


def _numbers(shape: Any, key: str) -> list[float]:
    """The numbers under a key of a shape; none where it has none, or something else."""
    known = shape.get(key) if isinstance(shape, Mapping) else None
    if not isinstance(known, list):
        return []
    return [x for x in known if isinstance(x, int | float) and not isinstance(x, bool)]
