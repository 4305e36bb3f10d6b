"""A run's folder: its name, what run.json keeps of cells and settings, which cells may join it, and
how the run goes on.
"""

import itertools
import math
import re
import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import PositiveFloat, TypeAdapter

from spbench.errors import Failure, or_none
from spbench.launch.cluster import Cluster
from spbench.launch.launcher import Deadlines
from spbench.report.progress import in_a_line
from spbench.results.lock import LOCK, check_free
from spbench.results.run_json import case_of, folder_of_run, read_run
from spbench.sweep.devices import refuse_capturing, refuse_compiling, why_not_here
from spbench.sweep.plan import declined
from spbench.sweep.request import Request
from spbench.text import counted, quoted
from spbench.workload.case import Case, Cell

BEGUN = {LOCK, "logs"}
"""What a run makes before it writes run.json: a folder that holds nothing else may be a run's."""


def output_folder(out: Path | None, title: str, *, fresh: bool = False) -> Path:
    """``out`` (a run there is resumed), a new folder beside it, or one named by date and title.

    Creates nothing. Only the process that writes may call it: other nodes and ranks may see the
    same disk, where that process has begun already. Raises Failure for what cannot be a run's.
    """
    if out is None:
        safe = re.sub(r"[^A-Za-z0-9.-]+", "-", title)
        return new_folder(Path("results"), f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{safe}")
    if fresh:
        return new_folder(out.parent, out.name)
    if out.exists() and not out.is_dir():
        raise Failure(f"--out {out} is a file; name a folder that may be new")
    held = {path.name for path in out.iterdir()} if out.is_dir() else set()
    if "run.json" not in held and held - BEGUN:
        raise Failure(f"--out {out} holds other things than a run; name a new folder, or --fresh")
    return out


def new_folder(parent: Path, name: str) -> Path:
    """``parent/name``, or with a number behind it that is not taken."""
    names = itertools.chain([name], (f"{name}-{count}" for count in itertools.count(2)))
    return next(parent / free for free in names if not (parent / free).exists())


def launch_folder(case: Case) -> str:
    """Readable, safe in any file system, and different for different cases and launches."""
    strategy = re.sub(r"[^A-Za-z0-9.-]+", "-", case.name)
    return f"{strategy}-{case.ranks}-{case.key[:8]}-launch{case.launch}"


def new_session() -> str:
    """A name that differs for any two invocations, wherever they run."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"


def as_in_run_json(cell: Cell) -> dict[str, object]:
    """A cell with all its fields, as run.json keeps it."""
    return {
        "key": cell.case.key,
        "why_not": cell.why_not,
        **cell.case.model_dump(mode="json", by_alias=True),
    }


INSTEAD = "'spbench run' with the flags of that run and its folder as --out goes on as well"
SETTINGS = TypeAdapter(dict[str, PositiveFloat | None])
"""Settings of a run that its cases do not tell, as run.json keeps them. None: no limit, which JSON
cannot tell as a number; or a peak that is not known."""


def as_asked(
    request: Request, cells: Sequence[Cell], folder: Path, placements: Sequence[str]
) -> dict[str, Any]:
    """What run.json keeps of the command.

    Parameters
    ----------
    request, cells
        What was asked for, and each cell of it.
    folder
        Of the run, whose run.json may name a reference already.
    placements
        A line for each number of ranks: which nodes have them; none on one machine.

    Returns
    -------
    dict
        Fields of run.json.
    """
    limits = {name: s if s < math.inf else None for name, s in vars(request.deadlines).items()}
    return {
        "argv": sys.argv,
        "reference": request.reference or read_run(folder).get("reference"),
        "cases": [as_in_run_json(cell) for cell in cells],
        "settings": {**limits, "peak_tflops": request.peak_tflops},
        "several_nodes": bool(placements),
    }


def _with_settings(request: Request, kept: Any) -> Request:
    """Raises ValueError or TypeError for settings that are damaged."""
    settings = SETTINGS.validate_python(kept)
    limits = {name: value for name, value in settings.items() if value is not None}
    peak_tflops = limits.pop("peak_tflops", None)
    return replace(request, deadlines=Deadlines(**limits), peak_tflops=peak_tflops)


def _cell_of(described: Mapping[str, Any]) -> Cell:
    """Raises ValueError for what this version would not measure under the same key."""
    case = case_of(described)
    if case.key != described["key"]:
        raise ValueError(f"{case.key} is not {described['key']}")
    return Cell(case=case, why_not=described.get("why_not"))


def _kept_cells(folder: Path) -> list[Cell | None]:
    """The cells of a run in the order of their running; None for what cannot be read."""
    return [or_none(partial(_cell_of, case)) for case in read_run(folder).get("cases", [])]


def resumed(run: Path, cluster: Cluster | None = None) -> tuple[Request, list[Cell]]:
    """The request and the cells of run.json. Raises Failure where they cannot be run here."""
    folder = folder_of_run(run)
    facts, kept = read_run(folder), _kept_cells(folder)
    cells = [cell for cell in kept if cell is not None]
    if facts.get("argv", ["", "run"])[1:2] not in (["run"], ["resume"]):
        raise Failure(f"{folder} was not written by 'spbench run'; nothing else can be resumed")
    if not cells or len(cells) < len(kept):
        lacks = "has no launches" if (folder / "run.json").exists() else "is missing"
        unread = (
            f"has {len(kept) - len(cells)} of {counted(len(kept), 'launch')} that cannot be read"
        )
        raise Failure(f"{folder}/run.json {unread if kept else lacks}; {INSTEAD}")
    request = Request(
        combinations=[],
        device=cells[0].case.device,
        kind=cells[0].case.kind,
        execution=cells[0].case.execution,
        seed=cells[0].case.seed,
        cluster=cluster,
        out=folder,
    )
    request = or_none(lambda: _with_settings(request, facts["settings"])) or request
    nodes = request.nodes
    refuse_compiling(cell.case for cell in cells if not cell.why_not)
    refuse_capturing(cell.case for cell in cells if not cell.why_not)
    for case in (cell.case for cell in cells if not cell.why_not):
        share = case.kind == "one_gpu_share"
        why_not = declined(case) or why_not_here(case.ranks, case.device, share=share, nodes=nodes)
        if why_not is not None:
            raise Failure(f"{folder} cannot go on here: {case.label}: {why_not}")
    return request, cells


def folder_for(request: Request, cells: Sequence[Cell]) -> Path:
    """Where the rows go. Raises Failure for a folder that they may not join. Creates nothing."""
    folder = output_folder(request.out, request.title, fresh=request.fresh)
    if not request.adds:
        check_free(folder)  # another run's settings may still be on their way
        check_may_join(folder, cells)
    return folder


def check_may_join(folder: Path, cells: Sequence[Cell]) -> None:
    """Raises Failure where the run in ``folder`` is of another workload, device or seed.

    Further strategies, ranks and launches may join a run: tables show them side by side.
    """
    kept = {_settings(cell.case): cell.case for cell in _kept_cells(folder) if cell is not None}
    strange = [cell.case for cell in cells if _settings(cell.case) not in kept]
    if kept and strange:
        first, more = next(iter(kept.values())), len(kept) - 1
        raise Failure(
            f"--out {folder} holds a run of other settings, and rows would be mixed:\n"
            f"    there  {_in_words(first)}{f' (and {more} more)' if more else ''}\n"
            f"    here   {_in_words(strange[0])}\n"
            f"  {quoted('spbench', 'resume', folder)} does what that run has left. For this one "
            f"name another --out, --fresh to start beside it, or --add to put both in one folder."
        )


def _settings(case: Case) -> tuple[object, ...]:
    how = case.device, case.kind, case.execution, case.seed
    return case.workload.name, case.workload_key, *how


def _in_words(case: Case) -> str:
    share = ", one rank's share" if case.kind == "one_gpu_share" else ""
    how = "" if case.is_eager else f", {case.execution}"
    return f"{in_a_line(case.workload)}; {case.device}{share}{how}, seed {case.seed}"
