"""``spbench list``: strategies, workloads, sweeps, clusters or runs."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
import pandas

from spbench.cli import options
from spbench.cli.help import HelpPage
from spbench.cli.selection import choose_workload, rank_counts
from spbench.errors import Failure, ResultsError, or_none, writing
from spbench.projection.costmodel.cluster_file import find as find_cluster
from spbench.report import units
from spbench.report.block_diagram import Picture, show
from spbench.report.fit_width import Grid
from spbench.report.progress import loading_torch
from spbench.report.tables import console, print_json, show_fitting
from spbench.results.find_run import RESULTS, not_there_yet
from spbench.results.run_json import case_of, read_run
from spbench.results.runs_csv import frame_of, latest, read_runs
from spbench.strategies.describe import lanes
from spbench.strategies.registry import (
    BUILT_IN,
    SUMMARIES,
    VENDORS,
    expand_names,
    is_installed,
    named,
)
from spbench.text import quoted
from spbench.workload.case import MAX_RANKS
from spbench.workload.catalogue import find, init_cluster, load_text
from spbench.workload.config_names import configs, names
from spbench.workload.flops import parameters, step_flops
from spbench.workload.hugging_face import describe
from spbench.workload.mesh import CaseMesh
from spbench.workload.sweeps import load_sweep

VENDOR, ABSENT = "vendor's: ", "vendor's, not installed: "
"""Before the idea of what is another package's own code, which is there or not."""
WORDS = {
    **{"strategies": (0, 1), "workloads": (0, 1), "sweeps": (0, 1, 2, 5)},
    **{"clusters": (0, 1, 2), "runs": (0, 1)},
}
"""The lists, and the columns of each that hold words."""
WRAPS = (1, 2, 5)
"""The columns whose cells may take several lines."""
SOURCE = 128
"""Characters of a source in a table; --json has all of it."""
HEADS = {"tokens": "tokens\na step", "started": "started (UTC)", "ok/launches": "ok/all"}
SHORT = {"parameters": "params", "activation_bytes": "M MiB"}
COLUMNS = {
    "strategies": ("strategy", "idea"),
    "workloads": (
        *("workload", "axes", "tokens", "parameters", "activation_bytes"),
        *("hidden/heads/depth", "step_flops", "dtype"),
    ),
    "runs": ("run", "workloads", "ok/launches", "other", "started"),
}
"""The columns of a table where --json has more; a / joins several fields in one column."""
SPARE = {
    "workloads": (
        *("step_flops dtype", "hidden/heads/depth", "activation_bytes", "parameters", "tokens"),
    ),
    "sweeps": ("source", "launches", "gpus", "cells"),
    "runs": ("other", "workloads"),
}
"""Columns that are left out, in this order, where not all fit."""
LUXURY = 2
"""How many of these go before a row may take several lines, and before heads are short."""


@click.command("list", cls=HelpPage)
@click.argument("what", type=click.Choice(list(WORDS)))
@options.json_option
def list_command(what: str, as_json: bool) -> None:
    """List strategies, workloads, sweeps, clusters to project to, or runs."""
    rows = rows_of(what)
    if as_json:
        print_json(rows)
    elif not rows:
        click.echo(f"no {what} yet")
    else:
        show_fitting(console(), _grids(what, rows))


def rows_of(what: str) -> list[dict[str, Any]]:
    """The rows of a list; each of the catalogue's from its file."""
    whole = {"strategies": _strategies, "runs": _runs}
    of_a_name = {"workloads": _workload, "sweeps": _sweep, "clusters": _cluster}
    return whole[what]() if what in whole else [of_a_name[what](name) for name in names(what)]


def _grids(what: str, rows: Sequence[Mapping[str, Any]]) -> list[Grid]:
    """The whole table, and smaller ones for narrower terminals."""
    columns, spare = COLUMNS.get(what, tuple(rows[0])), SPARE.get(what, ())
    cells = [[_cell(name, row) for name in columns] for row in rows]

    def less(gone: int, short: Mapping[str, str], wraps: Sequence[int]) -> Grid:
        known = HEADS | dict(short)
        plain = {name: name.replace("_bytes", " MiB").replace("_", " ") for name in columns}
        heads = {name: known.get(name, head) for name, head in plain.items()}
        whole = Grid(columns=list(heads.values()), rows=cells, words=WORDS[what], wraps=wraps)
        return whole.without(*(heads[name] for names in spare[:gone] for name in names.split()))

    luxury = min(LUXURY, len(spare))
    return [
        *(less(gone, short, ()) for gone in range(luxury) for short in ({}, SHORT)),
        *(less(gone, SHORT, WRAPS) for gone in range(luxury, len(spare) + 1)),
    ]


def _cell(column: str, row: Mapping[str, Any]) -> str:
    text = f" + {row['text']:,}" if column == "axes" and row.get("text") else ""
    return "/".join(_shown(part, row[part]) for part in column.split("/")) + text


def _shown(column: str, value: Any) -> str:
    if column.endswith("_bytes"):
        return units.size("MiB", value).removesuffix(" MiB")
    if column == "source":
        return textwrap.shorten(value, SOURCE, placeholder=" ...")
    if column == "tokens":
        return f"{value:,}"
    if column == "started":
        return units.minute(value)
    return units.count_of(value) if column in ("parameters", "step_flops") else str(value)


def _strategies() -> list[dict[str, Any]]:
    ideas = {name: f"from {path}" for name, path in named().items()} | SUMMARIES
    there = {name: is_installed(name) for name in VENDORS}
    ideas |= {name: (VENDOR if there[name] else ABSENT) + ideas[name] for name in VENDORS}
    known = dict.fromkeys(BUILT_IN, "spbench") | dict.fromkeys(VENDORS, "vendor")
    return [
        {
            "strategy": name,
            "idea": ideas[name],
            "code": known.get(name, "plug-in"),
            "installed": there.get(name, True),
        }
        for name in [*options.strategies_of(["all"]), *VENDORS]
    ]


def _workload(name: str) -> dict[str, Any]:
    work = find(name)
    return {
        "workload": name,
        "axes": " x ".join(f"{axis} {length}" for axis, length in work.axes.items()),
        "tokens": work.batch * work.tokens,
        "parameters": parameters(work).total,
        "activation_bytes": work.activation_bytes,
        **{field: getattr(work, field) for field in ("hidden", "heads", "batch", "text")},
        **{"depth": work.blocks, "head_dim": work.head_size},
        "step_flops": step_flops(work),
        "dtype": work.dtype,
        "source": work.source,
    }


def _sweep(name: str) -> dict[str, Any]:
    sweep = load_sweep(name, expand_names)
    cells = sweep.combinations
    return {
        "sweep": name,
        "workloads": ", ".join(dict.fromkeys(cell.workload.name for cell in cells)),
        "gpus": ", ".join(map(str, sorted({cell.ranks for cell in cells}))),
        "cells": len(cells),
        "launches": sweep.file.launches,
        "source": sweep.file.source,
    }


def _cluster(name: str) -> dict[str, Any]:
    cluster = find_cluster(name)
    return {"cluster": name, "device": cluster.device.name, "source": cluster.source}


def _runs() -> list[dict[str, Any]]:
    """The runs in the order of their starts, also those without a row."""
    rows = []
    for run in sorted({path.parent for path in RESULTS.glob("*/run*")}):
        try:
            rows.append(_run(run, read_runs(run) if (run / "runs.csv").exists() else frame_of([])))
        except ResultsError as error:
            click.echo(str(error), err=True)
    return sorted((row for row in rows if row["launches"]), key=lambda row: str(row["started"]))


def _run(run: Path, rows: pandas.DataFrame) -> dict[str, Any]:
    """A run began with the first of all its rows, also of those that were measured again."""
    frame, facts = latest(rows), read_run(run)
    planned = [or_none(partial(case_of, case)) for case in facts.get("cases", []) if frame.empty]
    ok = int((frame["status"] == "ok").sum())
    works = [*frame["workload"], *(case.workload.name for case in planned if case)]
    return {
        "run": run.name,
        "workloads": ", ".join(dict.fromkeys(works)),
        "ok": ok,
        "other": len(frame) - ok,
        "launches": int((frame["status"] != "interrupted").sum()) + not_there_yet(run, frame),
        "started": min(filter(None, rows["started_utc"]), default=""),
    }


# ``spbench show``: one block of a workload as a picture, a lane for each strategy.


@click.command("show", cls=HelpPage)
@options.workload_argument
@options.strategy_option
@click.option(
    "-g",
    "--gpus",
    "ranks",
    default="8",
    metavar="N[,N...]",
    help="Numbers of ranks, a picture for each; no process is started.",
)
@options.mesh_option
@options.settings_option
@options.json_option
def show_command(
    workload: str,
    strategies: Sequence[str],
    ranks: str,
    meshes: Sequence[CaseMesh],
    settings: Sequence[str],
    as_json: bool,
) -> None:
    """Draw one block of WORKLOAD, a name of the catalogue or a YAML file.

    For each strategy the axis that is sharded while each sublayer runs, and the bytes that
    the busiest rank sends. Nothing is run.
    """
    work, names = choose_workload(workload, settings), options.strategies_of(strategies)
    counts = rank_counts(ranks)
    if max(counts) > MAX_RANKS:
        raise Failure(f"--gpus {max(counts)}: too many for one group; use 1 to {MAX_RANKS}")
    with loading_torch():
        drawn = {
            count: [lane for mesh in meshes for lane in lanes(work, names, count, mesh)]
            for count in counts
        }
    pictures = [Picture(workload=work, ranks=count, lanes=drawn[count]) for count in counts]
    if as_json:
        data = [picture.as_data() for picture in pictures]
        print_json(data if len(data) > 1 else data[0])
        return
    for place, picture in enumerate(pictures):
        if place:
            click.echo()
        show(picture)


# ``spbench init``: a workload to fill in, or one of a model's config.json; a cluster by its logs.

NAME = "my-model"
"""Name of the workload in the template, and the default."""
CLUSTER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@click.command("init", cls=HelpPage)
@click.argument("names", nargs=-1, metavar="[NAME]")
@click.option(
    "--from",
    "sources",
    type=options.PATH,
    multiple=True,
    metavar="FILE",
    help="A config.json of diffusers or transformers, or a folder with one: its workload. With "
    "--cluster output of nccl-tests, as text or as JSON, any number of files.",
)
@click.option(
    "--cluster",
    metavar="NAME",
    help="Write a cluster in place of a workload, with the links that logs of nccl-tests hold.",
)
@click.option(
    "--like",
    metavar="NAME|FILE",
    help="With --cluster: the cluster that is otherwise alike, whose kernels are taken.",
)
def init_command(
    names: Sequence[str], sources: Sequence[Path], cluster: str | None, like: str | None
) -> None:
    """Write NAME.yaml, a workload with a comment at each key, to fill in.

    It can be run as it is. A file that exists is never overwritten.

    With --cluster it writes a cluster for 'recommend' and 'project' from logs of all_reduce_perf,
    all_gather_perf, reduce_scatter_perf, alltoall_perf and sendrecv_perf: it is like another
    one, and has the links that were timed, each at the level that joins its ranks. It says what
    is replaced, and what stays assumed.
    """
    if cluster is not None:
        # A shell makes several words of 'logs/*', of which --from takes the first.
        _init_cluster(cluster, like, [*sources, *map(Path, names)])
        return
    if like is not None:
        raise Failure(f"--like {like} is for a cluster: give --cluster NAME and --from LOGS, too")
    if len(names) > 1 or len(sources) > 1:
        more = [*names, *sources]
        raise Failure(
            f"{' '.join(map(str, more))}: a workload is made of one file, and has one name; of "
            f"several logs of nccl-tests a cluster is made: {init_cluster('hgx-h100')}"
        )
    _init_workload(names[0] if names else NAME, sources[0] if sources else None)


def _init_workload(name: str, source: Path | None) -> None:
    """Writes the template, or the workload of a config.json. Raises Failure."""
    if name.endswith(".json"):
        make = quoted("spbench", "init", NAME, "--from", name)
        raise Failure(f"{name}: NAME is the workload to write; to make it of that file: {make}")
    file = Path(name if name.endswith((".yaml", ".yml")) else f"{name}.yaml")
    said = ""
    if source is None:
        text = (configs() / "template.yaml").read_text(encoding="utf-8")
        text = text.replace(f"{NAME}.yaml", str(file)).replace(
            f"name: {NAME}", f"name: {file.stem}"
        )
    else:
        described = describe(source, file.stem)
        text, here = described.text, units.count_of(parameters(described.workload).total)
        said = f", {here} parameters of the model's {units.count_of(described.total)}"
    load_text(text, str(file))  # a name that no workload may have is refused
    _write_new(file, text, "spbench init my-model-2")
    show = quoted("spbench", "show", file, "-g", 2)
    click.echo(f"{file} is written{said}; look at it with: {show}")


def _init_cluster(name: str, like: str | None, logs: Sequence[Path]) -> None:
    """Writes a cluster whose links are those of logs, and says what is replaced and what is not.
    Raises Failure."""
    file = Path(name if name.endswith((".yaml", ".yml")) else f"{name}.yaml")
    if not CLUSTER_NAME.fullmatch(file.stem):
        raise Failure(f"{name!r} is not a name of a cluster; use letters, digits, '.', '_' and '-'")
    if like is None:
        raise Failure(
            "a log of nccl-tests has no times of kernels: give with --like a cluster that is "
            "otherwise alike, of the catalogue such as hgx-h100, or a file that calibrate wrote"
        )
    if not logs:
        raise Failure(
            f"--cluster {name} without logs would be {like} again: give output of nccl-tests, as "
            "in --from nccl-logs/*"
        )
    with loading_torch():
        from spbench.projection.costmodel.short_file import short_text
        from spbench.projection.microbench.calibrate import write
        from spbench.projection.microbench.imported_links import said, with_logs
    imported = with_logs(file.stem, find_cluster(like), logs)
    with writing(file):  # what the file is like is looked for from its folder
        file.parent.mkdir(parents=True, exist_ok=True)
    if imported.cluster.on_ranks:  # each number of ranks has a device of its own: nothing is short
        _refuse_existing(file, AS_ANOTHER)
        write(imported.cluster, file)
    else:
        _write_new(file, short_text(imported.cluster, like, file.absolute().parent), AS_ANOTHER)
    for line in said(imported):
        click.echo(line)
    click.echo(f"{file} is written; use it as --cluster {file}")


AS_ANOTHER = "spbench init --cluster my-cluster-2 ..."


def _refuse_existing(file: Path, otherwise: str) -> None:
    """Raises Failure where the file is there; ``otherwise``: a command that names another."""
    if file.exists():
        raise Failure(f"{file} exists; give another name, as in '{otherwise}'")


def _write_new(file: Path, text: str, otherwise: str) -> None:
    """Writes a file that is not there yet. Raises Failure where it is."""
    with writing(file):
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("x", encoding="utf-8") as opened:
                opened.write(text)
        except FileExistsError:
            _refuse_existing(file, otherwise)
            raise
