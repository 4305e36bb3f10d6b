"""spbench.prove of modules that torch.compile has compiled: proved as compiled, and left so."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.graphs import CountedGraphs
from torch import nn

import spbench
from spbench import Proof, SequenceGroup
from spbench.comm.threaded import ThreadTransport, run_rank_threads

EXAMPLES = Path(__file__).parents[3] / "examples"
sys.path.insert(0, str(EXAMPLES))
import video_transformer  # noqa: E402
import video_transformer_ulysses  # noqa: E402

TIME, SPACE, HEADS = 1, 2, 3
SIZES = {"frames": 7, "patches": 5, "channels": 3, "hidden": 20, "heads": 5}


@pytest.fixture
def graphs() -> Iterator[CountedGraphs]:
    """A backend that runs a graph as it is; nothing compiled is left of other tests."""
    torch.compiler.reset()
    yield CountedGraphs()
    torch.compiler.reset()


def compiled(module: nn.Module, graphs: CountedGraphs) -> Any:
    return torch.compile(module, backend=graphs)


def in_place(module: nn.Module, graphs: CountedGraphs) -> Any:
    module.compile(backend=graphs)
    return module


def in_parts(module: Any, graphs: CountedGraphs) -> Any:
    for block in module.blocks:
        block.mlp = torch.compile(block.mlp, backend=graphs)
    return module


def as_it_is(module: nn.Module, graphs: CountedGraphs) -> Any:
    return module


Form = Callable[[nn.Module, CountedGraphs], Any]


@pytest.mark.parametrize(
    ("plain_form", "form"),
    [
        (as_it_is, compiled),
        (compiled, as_it_is),
        (compiled, compiled),
        (as_it_is, in_place),
        (in_parts, as_it_is),
        (as_it_is, in_parts),
    ],
)
def test_compiled_modules_are_proved_and_stay_compiled(
    monkeypatch: pytest.MonkeyPatch, graphs: CountedGraphs, plain_form: Form, form: Form
) -> None:
    """Names of weights are the plain module's; what is counted is as if nothing were compiled; and
    behind the proof the user's compiled code still runs."""
    # Of a module that is compiled whole a second block is compiled as the first one is.
    depth = 2 if in_parts in (plain_form, form) else 1
    for example in (video_transformer, video_transformer_ulysses):
        monkeypatch.setattr(example, "DEPTH", depth)

    def rank_main(transport: ThreadTransport) -> Proof:
        with graphs.lock:
            torch.manual_seed(0)
            sp = SequenceGroup({TIME: 7, SPACE: 5, HEADS: 5}, transport)
            plain = plain_form(video_transformer.VideoTransformer(**SIZES), graphs)
            model = form(video_transformer_ulysses.VideoTransformer(**SIZES, sp=sp), graphs)
        x = torch.randn(2, 7, 5, 3, generator=torch.Generator().manual_seed(0))
        proof = spbench.prove(plain, model, x, group=sp)
        of_rank = graphs.of_this_thread()
        assert of_rank > 0, "nothing compiled ran while it was proved"
        for module in (plain, model):
            module(x)
        assert graphs.of_this_thread() >= 2 * of_rank
        return proof

    for proof in run_rank_threads(2, rank_main):
        assert proof.gradient_error < 1e-5
        assert proof.uncounted == {}
        assert (proof.sent_bytes_forward, proof.sent_bytes_backward) == (5_600 * depth,) * 2
        names = [name for name, _ in video_transformer.VideoTransformer(**SIZES).named_parameters()]
        compared = ["output", "gradient of input 0", *(f"gradient of {name}" for name in names)]
        assert [each.name for each in proof.differences] == compared


def test_a_hint_leaves_compiled_code_as_it_is(graphs: CountedGraphs) -> None:
    """Both modules run once more where the output is wrong, and their compiled code not at all."""
    torch.manual_seed(0)
    (transport,) = run_rank_threads(1, lambda transport: transport)
    right = nn.Linear(3, 2)
    wrong: Any = nn.Sequential(nn.Linear(3, 2), nn.Tanh())
    wrong[0].load_state_dict(right.state_dict())
    plain, parallel = nn.Sequential(right), torch.compile(wrong, backend=graphs)
    x = torch.randn(4, 3)
    with pytest.raises(spbench.ProofError, match="a switch forgotten"):
        spbench.prove(plain, parallel, x, group=SequenceGroup({}, transport))
    before = graphs.of_this_thread()
    assert before == 1
    parallel(x.requires_grad_())
    assert graphs.of_this_thread() == before + 1
