"""Which errors of a rank say that another is gone: by type, and by how torch's backends begin."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from spbench.comm.group import is_broken_connection
from spbench.comm.kv_store import KeyValueStoreError
from spbench.errors import Failure
from spbench.worker.rank_process import failure

GLOO = "/build/third_party/gloo/gloo"


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError(
            f"[{GLOO}/transport/tcp/pair.cc:553] Connection closed by peer [::1]:1. GLHF!"
        ),
        RuntimeError(f"[{GLOO}/transport/tcp/unbound_buffer.cc:78] Timed out waiting 3000ms"),
        RuntimeError(f"[enforce fail at {GLOO}/transport/tcp/device.cc:84] ifa != nullptr. "),
        RuntimeError(
            f"Gloo connectFullMesh failed with [{GLOO}/transport/tcp/pair.cc:144] no error"
        ),
        RuntimeError("NCCL communicator was aborted on rank 1."),
        RuntimeError("[Rank 0] NCCL communicator was aborted"),
        RuntimeError("Wait timeout"),
        dist.DistBackendError("whatever NCCL says"),
        dist.DistNetworkError("The client socket has timed out"),
        dist.DistStoreError("wait timeout after 300000ms"),
        KeyValueStoreError("does not answer"),
        ConnectionResetError(104, "Connection reset by peer"),
    ],
)
def test_another_rank_is_gone(error: BaseException) -> None:
    """These leave the row comm_error, and another rank to blame."""
    assert is_broken_connection(error)
    assert failure(error, 0).status == "comm_error"


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(2, "No such file or directory", "/home/x/gloo/data/NCCL.bin"),
        PermissionError(13, "Permission denied", f"{GLOO}/transport/tcp/pair.cc"),
        RuntimeError("cannot read /home/x/gloo/weights.pt"),
        RuntimeError("PytorchStreamReader failed reading /scratch/NCCL-runs/w.pt: Timed out"),
        RuntimeError("a model of mine calls itself gloo"),
        ValueError("NCCL is no axis"),
        Failure("LOCAL_RANK=1, and this rank sees no GPU; NCCL needs one each"),
        KeyError("gloo"),
        ModuleNotFoundError("No module named 'gloo'"),
        AssertionError("Connection closed by peer"),
    ],
)
def test_words_in_an_error_break_no_connection(error: BaseException) -> None:
    """A path, a message of a model, a missing module: the rank itself has failed."""
    assert not is_broken_connection(error)
    assert failure(error, 0).status == "crash"


@pytest.mark.parametrize("words", ["out of memory", "can't allocate memory", "ALLOC_FAILED"])
def test_words_in_an_error_take_no_memory(words: str) -> None:
    """Only torch's own errors, all of them RuntimeErrors, tell of memory by their words."""
    assert failure(FileNotFoundError(2, "No such file", f"/runs/{words}/w.pt"), 0).status == "crash"
    assert failure(RuntimeError(f"DefaultCPUAllocator: {words}"), 0).status in ("oom", "host_oom")


def test_memory_comes_before_a_connection() -> None:
    """A rank out of memory keeps its status, wherever the allocation failed."""
    said = f"[{GLOO}/transport/tcp/pair.cc:1] CUDA out of memory. Tried to allocate 2.00 GiB"
    assert failure(torch.OutOfMemoryError(said), 0).status == "oom"
