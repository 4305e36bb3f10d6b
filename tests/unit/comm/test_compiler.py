"""What torch's compiler is kept out of, how often its graphs run, and the names that it changes.

Private parts of torch: a torch that changes them fails here.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from helpers.graphs import CountedGraphs
from torch import Tensor, nn

from spbench.comm.compiler import graphs_run, load_weights_of, never_compiled, nothing_compiled
from spbench.layers.dispatch_modes import KernelsSeen, WatchingMode
from spbench.worker.memory import LiveStorages
from spbench.worker.witness import Witness


@pytest.fixture
def graphs() -> Iterator[CountedGraphs]:
    """A backend that runs a graph as it is; nothing compiled is left of other tests."""
    torch.compiler.reset()
    yield CountedGraphs()
    torch.compiler.reset()


class Log:
    """A list of which Python code is to be run each time."""

    def __init__(self) -> None:
        self.said: list[int] = []

    @never_compiled
    def say(self, x: Tensor) -> Tensor:
        self.said.append(torch.compiler.is_compiling())
        return inner(x)


def inner(x: Tensor) -> Tensor:
    return x.cos()


def test_it_is_never_compiled_wherever_it_is_called(graphs: CountedGraphs) -> None:
    """In the midst of a function it parts two graphs; what it calls is not compiled, either."""
    log = Log()
    function = torch.compile(lambda x: log.say(x.sin()) * 2, backend=graphs)
    x = torch.ones(2)
    for _ in range(3):
        assert torch.equal(function(x), x.sin().cos() * 2)
    assert log.said == [False] * 3
    assert graphs.of_this_thread() == 2 * 3
    torch.compile(log.say, backend=graphs)(x)
    assert log.said == [False] * 4
    assert graphs.of_this_thread() == 2 * 3


def test_graphs_are_counted_by_thread(graphs: CountedGraphs) -> None:
    """Those of one thread, also while they are compiled; a backward is not counted again."""

    def parted(x: Tensor) -> Tensor:
        x = x.sin()
        torch._dynamo.graph_break()
        return x.cos()

    x = torch.ones(2, requires_grad=True)
    with graphs_run() as nothing:
        parted(x)
    assert nothing.graphs == 0
    function = torch.compile(parted, backend=graphs)
    function(x)
    with graphs_run() as counted:
        for _ in range(3):
            function(x).sum().backward()
    assert counted.graphs == 6
    assert graphs.of_this_thread() == 8
    with graphs_run() as counted:
        torch.compile(lambda x: x + 1, backend="aot_eager")(x)
    assert counted.graphs == 1
    with graphs_run() as counted, nothing_compiled():
        function(x)
    assert counted.graphs == 0
    of_threads: list[int] = []

    def many() -> None:
        with graphs_run() as counted:
            for _ in range(50):
                function(x)
        of_threads.append(counted.graphs)

    threads = [threading.Thread(target=many) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert of_threads == [100, 100]


def test_a_profile_of_ones_own_goes_on(graphs: CountedGraphs) -> None:
    """What was to be told of calls is told again."""
    calls: list[str] = []
    function = torch.compile(inner, backend=graphs)
    function(torch.ones(1))
    before = sys.getprofile()
    try:
        sys.setprofile(lambda frame, event, arg: calls.append(frame.f_code.co_name))
        with graphs_run():
            pass
        calls.clear()
        inner(torch.ones(1))
    finally:
        sys.setprofile(before)
    assert "inner" in calls


class Watching(WatchingMode):
    """Adds up bytes, as some instruments do: of a tensor that is traced they are not known."""

    def __init__(self) -> None:
        super().__init__()
        self.seen_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = self.call(func, args, kwargs)
        self.seen_bytes += out.nbytes if isinstance(out, Tensor) else 0
        return out


def eagerly(x: Tensor) -> Tensor:
    """What the compiler cannot take in, so that it runs by itself in the midst of compiled code."""
    sys._getframe()
    (doubled,) = [part * 2 for part in map(Tensor.tan, [x])]
    return doubled


@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace")
def test_a_mode_neither_stops_the_compiler_nor_is_compiled(graphs: CountedGraphs) -> None:
    """Lengths that change are symbols to the compiler; what is compiled in it runs behind it."""
    function = torch.compile(lambda x: eagerly(x.sin()) + 1, backend=graphs)
    x = torch.ones(3, 5)
    with Watching() as mode:
        function(x)
        function(torch.ones(4, 6))
        of_mode = graphs.of_this_thread()
        function(torch.ones(7, 8))
    assert mode.seen_bytes > 4 * x.nbytes
    assert of_mode > 0
    before = graphs.of_this_thread()
    function(torch.ones(7, 8))
    assert graphs.of_this_thread() - before == of_mode // 2


@pytest.mark.parametrize("mode", [KernelsSeen, LiveStorages, Witness])
def test_instruments_let_code_be_compiled(mode: type[WatchingMode]) -> None:
    """Under another mode torch marks what it meets as not to be compiled, ever."""
    assert mode.ignore_compile_internals()


def test_nothing_here_loads_the_compiler() -> None:
    """It takes a second of each rank's time."""
    words = "import sys, spbench.worker.measure; sys.exit('torch._dynamo' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", words], check=False).returncode == 0


class Parts(nn.Module):
    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        self.parts = nn.Sequential(*parts)


def test_weights_go_from_any_form_to_any_other(graphs: CountedGraphs) -> None:
    """A module is compiled as a whole, or one in it; missing ones are named as torch names them."""
    plain = Parts(nn.Linear(2, 2), nn.Linear(2, 2))
    inside = Parts(torch.compile(nn.Linear(2, 2), backend=graphs), nn.Linear(2, 2))  # type: ignore[arg-type]
    whole: Any = torch.compile(Parts(nn.Linear(2, 2), nn.Linear(2, 2)), backend=graphs)
    for one, other in ((plain, inside), (inside, whole), (whole, plain)):
        with torch.no_grad():
            for weight in one.parameters():
                weight.add_(1.0)
        load_weights_of(one, other)
        for mine, its in zip(other.parameters(), one.parameters(), strict=True):
            assert torch.equal(mine, its)
    with pytest.raises(RuntimeError, match=r"Missing key.*parts\.0\._orig_mod\.weight"):
        load_weights_of(nn.Linear(2, 2), inside)


def test_threads_that_leave_in_the_order_in_which_they_came(graphs: CountedGraphs) -> None:
    """The first is gone while the second is still inside: behind both, compiled code runs again."""
    function, x = torch.compile(lambda x: x.sin() + 1, backend=graphs), torch.ones(3)
    function(x)
    first_inside, second_inside, first_left = (threading.Event() for _ in range(3))

    def first() -> None:
        with nothing_compiled():
            first_inside.set()
            second_inside.wait(60)
        first_left.set()

    def second() -> None:
        first_inside.wait(60)
        with nothing_compiled():
            second_inside.set()
            first_left.wait(60)
            function(x)

    threads = [threading.Thread(target=each) for each in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    function(x)
    assert graphs.of_this_thread() == 2
