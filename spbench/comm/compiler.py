"""torch's compiler: what it is kept out of, how often its graphs run, the names that it changes.

Transfers are counted by Python code, which must run each time: the compiler would run it once,
while it traces, and write down what came of it. What looks on (``layers/watching.py``) is nothing
to compile either. ``torch.compiler.disable`` says so, but loads the compiler, which takes a second
of each rank's time: what it sets is set here in its place.

Private parts of torch (2.11 to 2.14), in no other file: ``set_code_exec_strategy``,
``_torchdynamo_disable``, the counters of ``torch._dynamo``, ``_orig_mod`` in the names of a
compiled module's weights, the name of a compiled region in a profile. Should they change,
tests/unit/comm/test_compiler.py finds it out.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import nn
from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy
from torch.autograd.profiler import profile

Function = TypeVar("Function", bound=Callable[..., Any])
NEVER = _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP)
"""For a frame, and for all that is called from it."""
REGION = "Torch-Compiled Region"
"""What the name of a compiled graph in a profile begins with."""
ORIGINAL = "_orig_mod."
"""What ``torch.compile`` puts before the names in a module: 0._orig_mod.weight."""


def never_compiled(function: Function) -> Function:
    """Decorates what runs as it is written, also where compiled code calls it."""
    set_code_exec_strategy(function.__code__, NEVER)  # where it is called from uncompiled code
    function._torchdynamo_disable = True  # type: ignore[attr-defined]  # where it would be inlined
    return function


@contextmanager
def nothing_compiled() -> Iterator[None]:
    """Inside, functions that ``torch.compile`` was given run as they were written. Behind it their
    compiled code is what it was."""
    if "torch._dynamo" not in sys.modules:  # nothing can have been compiled
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


class GraphCount:
    """Compiled graphs that ran."""

    graphs = 0


@contextmanager
def graphs_run() -> Iterator[GraphCount]:
    """Counts the graphs of ``torch.compile`` that this thread runs inside: a function that is
    compiled in three parts is three each time. A graph's backward is not counted again.

    By torch's profiler, so not for timed steps. Where nothing was ever compiled it is not started.
    """
    count = GraphCount()
    if not _has_compiled():
        yield count
        return
    with profile(use_kineto=False) as seen:
        yield count
    count.graphs = sum(event.name.startswith(REGION) for event in seen.function_events)


def _has_compiled() -> bool:
    """Whether this process has compiled a graph."""
    dynamo = sys.modules.get("torch._dynamo")
    return dynamo is not None and bool(dynamo.utils.counters["stats"]["unique_graphs"])


def plain_name(name: str) -> str:
    """The name of a weight as it is in a module that is not compiled."""
    return name.replace(ORIGINAL, "")


def load_weights_of(plain: nn.Module, into: nn.Module) -> None:
    """``into`` takes the weights of ``plain``; either, or modules in it, may be compiled."""
    weights: Mapping[str, Any] = {plain_name(n): x for n, x in plain.state_dict().items()}
    own_names = {plain_name(name): name for name in into.state_dict()}
    into.load_state_dict({own_names.get(name, name): x for name, x in weights.items()})
