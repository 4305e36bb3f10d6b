"""Whether this process is one of several that one command was started as.

mpirun and srun start a command as often as they are told. spbench starts ranks itself, so that each
copy would be a run of its own, beside the others on the same cores and links: that is refused.
Copies that have RANK and WORLD_SIZE are ranks of one launch (``torchrun.py``), and one on each of
srun's nodes are the nodes of one (``cluster.py``); neither is asked here.
"""

from collections.abc import Mapping

TASKS = "SLURM_STEP_NUM_TASKS"
RANK_OF = {
    "OMPI_COMM_WORLD_SIZE": "OMPI_COMM_WORLD_RANK",
    "MV2_COMM_WORLD_SIZE": "MV2_COMM_WORLD_RANK",
    "PMI_SIZE": "PMI_RANK",
    "MPI_LOCALNRANKS": "MPI_LOCALRANKID",
}
"""The variable with the number of processes, and that with the number of this one: of Open MPI,
MVAPICH, and those that start by PMI (MPICH, Intel MPI, Slurm). MPI_LOCALNRANKS is of one node."""
PMIX_RANK = "PMIX_RANK"
"""PMIx tells this process's number alone: above 0 there are others."""


def mpi_copies(environ: Mapping[str, str]) -> str | None:
    """Why a process that mpirun started cannot go on; None where it is the only one, or srun has
    started it, whose tasks have the same variables."""
    tasks = number(environ, TASKS)
    for size, rank in RANK_OF.items():
        count = number(environ, size)
        # Slurm sets PMI_SIZE too: as many as its tasks are srun's, which is asked for elsewhere.
        if count is not None and count > 1 and count != tasks:
            return _advice(f"{size}={count}: an MPI launcher started {count} copies", rank)
    if (number(environ, PMIX_RANK) or 0) > 0 and tasks is None:
        told = f"{PMIX_RANK}={environ[PMIX_RANK]}: a launcher started several copies"
        return _advice(told, PMIX_RANK)
    return None


def srun_copies(environ: Mapping[str, str]) -> str | None:
    """Why a task of a step of several tasks cannot start ranks for itself alone."""
    tasks = number(environ, TASKS) or 1
    if tasks == 1:
        return None
    return f"srun started {tasks} copies of this command, each of which would start all ranks"


def number(environ: Mapping[str, str], name: str) -> int | None:
    """The value of a variable that holds a whole number; None for anything else."""
    text = environ.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else None


def _advice(told: str, rank: str) -> str:
    return (
        f"{told} of this command, and each would make the same run beside the others, since "
        f"spbench starts the ranks itself.\n"
        f"  Start it once, without mpirun; or one on each node (mpirun --map-by ppr:1:node) with "
        f"--nnodes N --node-rank ${rank} --rdzv-endpoint HOST; or let torchrun start the ranks, "
        f"or whatever sets RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT."
    )
