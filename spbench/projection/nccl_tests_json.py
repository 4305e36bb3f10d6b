"""What nccl-tests writes with ``-J FILE``: one run as JSON."""

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from spbench.errors import Failure
from spbench.projection.nccl_run import Run, Seat, factor, named, operation, seated
from spbench.workload.traffic import Op


def run_of_json(path: Path, text: str) -> Run:
    """The run of a file. Raises Failure for other JSON, and for numbers that arrived wrong."""
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise Failure(f"{path}:{error.lineno}: not whole JSON of nccl-tests: {error.msg}") from None
    op = _operation(path, data)
    try:
        devices = data["config"]["devices"]
        seats = {int(each["rank"]): _seat(each) for each in devices}
        rows = [
            (int(each["size"]), dict(each["out_of_place"]), dict(each.get("in_place") or {}))
            for each in data["results"]
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise Failure(
            f"{path} is not JSON of nccl-tests (-J): no config.devices with rank, hostname and "
            f"device, and results with size and out_of_place ({error!r})"
        ) from None
    if len(seats) < len(devices):
        raise Failure(f"{path}: {len(devices)} devices of {len(seats)} ranks: one is listed twice")
    where = seated(str(path), seats)
    points = [
        (size * factor(op, len(seats)), seconds)
        for number, (size, *halves) in enumerate(rows)
        for seconds in _seconds(f"{path}: results[{number}]", *halves)
        if size
    ]
    if not points:
        raise Failure(f"{path}: a test without times: it ended before its first size")
    return Run(path=path, place=str(path), op=op, seats=where, points=points)


def _operation(path: Path, data: Any) -> Op:
    """By the program that its arguments begin with, where they are there, or by the file's name."""
    arguments = data.get("args") if isinstance(data, dict) else None
    if isinstance(arguments, list) and arguments:
        return operation(str(path), Path(str(arguments[0])).name)
    return named(path)


def _seat(device: Mapping[str, Any]) -> Seat:
    return Seat(
        host=str(device["hostname"]), device=int(device["device"]), group=int(device["group"])
    )


def _seconds(
    place: str, out_of_place: Mapping[str, Any], in_place: Mapping[str, Any]
) -> Iterator[float]:
    """The time out of place, if any was taken. Raises Failure for wrong numbers in either half."""
    for half, name in ((out_of_place, "out of place"), (in_place, "in place")):
        wrong = half.get("nwrong")
        # JSON has no N/A: a number, or nothing where errors were not looked for.
        if isinstance(wrong, int | float) and wrong > 0:
            raise Failure(
                f"{place}: nwrong is {wrong:g} {name}: numbers arrived wrong, and such times mean "
                f"nothing"
            )
    us = out_of_place.get("time")
    if not isinstance(us, int | float) or not math.isfinite(us):
        raise Failure(f"{place}: no time out of place, which is what strategies' collectives take")
    if us:
        yield us / 1e6
