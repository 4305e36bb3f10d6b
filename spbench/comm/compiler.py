"""torch's compiler: what it is given, what it is kept out of, how often its graphs run.

Transfers are counted by Python code, which must run each time: the compiler would run it once,
while it traces, and write down what came of it. What looks on (``layers/dispatch_modes.py``) is
nothing to compile either. ``torch.compiler.disable`` says so, but loads the compiler, which takes a
second of each rank's time: what it sets is set here in its place.

Private parts of torch (2.11 to 2.14), in no other file: ``set_code_exec_strategy``,
``_torchdynamo_disable``, the list of compiled codes, and ``_orig_mod`` in the names of a compiled
module's weights. Should they change, tests/unit/comm/test_compiler.py finds it out.
"""

import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import CodeType, FrameType
from typing import Any, Protocol, TypeVar, cast, final

import torch
from torch import nn
from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy

Function = TypeVar("Function", bound=Callable[..., Any])
NEVER = _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP)
"""For a frame, and for all that is called from it."""
ORIGINAL = "_orig_mod."
"""What ``torch.compile`` puts before the names in a module: 0._orig_mod.weight."""


def never_compiled(function: Function) -> Function:
    """Decorates what runs as it is written, also where compiled code calls it."""
    set_code_exec_strategy(function.__code__, NEVER)  # where it is called from uncompiled code
    function._torchdynamo_disable = True  # type: ignore[attr-defined]  # where it would be inlined
    return function


@never_compiled
def applied(function: type[torch.autograd.Function], *args: Any) -> Any:
    """``function.apply(*args)`` as it is written, of a function that sends in forward or backward:
    the compiler would follow it, and find transfers in the middle of one operation."""
    return function.apply(*args)


MANY = 2**16
"""Versions of a function that the compiler may make. By default it gives up behind 8, and runs the
function eagerly from then on: sublayers share their code, and each kind of them is a version."""


def compile_apart(modules: Iterable[nn.Module]) -> None:
    """Gives each of the modules to ``torch.compile``, which compiles it when it is first called;
    names of weights stay. Transfers in it part its graphs, and nothing else does."""
    from torch import _dynamo  # it takes a second to load

    config: Any = _dynamo.config
    config.recompile_limit = config.accumulated_recompile_limit = MANY
    # Else a transfer parts every function that leads to it: a gather inside a projection inside a
    # sublayer would be seven graphs in place of two. A torch without this setting has the seven.
    if hasattr(config, "nested_graph_breaks"):
        config.nested_graph_breaks = True
    # It says of each cached function that it is followed as if it were not: they are pure.
    warnings.filterwarnings("ignore", message="Dynamo detected a call to a `functools.lru_cache`")
    for module in modules:
        module.compile(dynamic=False)


@final
class _Eager:
    """torch's stance is one for all threads: the first that is inside sets it, and the last that
    leaves puts it back. If each did, one would put back what another had set."""

    def __init__(self) -> None:
        self._lock, self._inside, self._stance = threading.Lock(), 0, ExitStack()

    def __enter__(self) -> None:
        with self._lock:
            self._inside += 1
            if self._inside == 1:
                self._stance.enter_context(torch.compiler.set_stance("force_eager"))

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._stance.close()


EAGER = _Eager()


@contextmanager
def nothing_compiled() -> Iterator[None]:
    """Inside, functions that ``torch.compile`` was given run as they were written. Behind it their
    compiled code is what it was."""
    if "torch._dynamo" not in sys.modules:  # nothing can have been compiled
        yield
        return
    with EAGER:
        yield


class GraphCount:
    """Compiled graphs that ran."""

    graphs = 0


@contextmanager
def graphs_run() -> Iterator[GraphCount]:
    """Counts the graphs of ``torch.compile`` that this thread runs inside: a function that is
    compiled in three parts is three each time. A graph's backward is not counted again.

    Python tells of each call of a function, so not for timed steps. Where nothing was compiled it
    is not asked. (torch's profiler, which tells of graphs, too, cannot end in two threads at once.)
    """
    count = GraphCount()
    codes = _compiled_codes()
    if codes is None or not codes.seen:
        yield count
        return

    def look(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code in codes:
            count.graphs += 1

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        yield count
    finally:
        sys.setprofile(before)


class Codes(Protocol):
    """Functions as the compiler has written them anew, each to call one graph."""

    seen: Sequence[object]

    def __contains__(self, code: CodeType) -> bool: ...


def _compiled_codes() -> Codes | None:
    dynamo: Any = sys.modules.get("torch._dynamo.convert_frame")
    return None if dynamo is None else cast(Codes, dynamo.output_codes)


def plain_name(name: str) -> str:
    """The name of a weight as it is in a module that is not compiled."""
    return name.replace(ORIGINAL, "")


def load_weights_of(plain: nn.Module, into: nn.Module) -> None:
    """``into`` takes the weights of ``plain``; either, or modules in it, may be compiled."""
    weights: Mapping[str, Any] = {plain_name(n): x for n, x in plain.state_dict().items()}
    own_names = {plain_name(name): name for name in into.state_dict()}
    into.load_state_dict({own_names.get(name, name): x for name, x in weights.items()})
