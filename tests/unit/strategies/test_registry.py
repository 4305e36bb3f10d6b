"""Strategies by name and option, and the messages for unknown ones."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from spbench.strategies.registry import UnknownStrategyError, check_name, load, places

ROOT = Path(__file__).parents[3] / "spbench"


def test_options_become_fields() -> None:
    """A bare flag is true, a value is parsed as the type of its default."""
    assert load("rsa:reduce-scatter") == load("rsa:reduce-scatter=true")
    assert load("rsa:reduce-scatter=false") == load("rsa")
    both = load("ulysses:every-attention:shard-axis=time")
    assert (both.every_attention, both.shard_axis) == (True, "time")  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dps", "Did you mean 'dsp'"),
        ("DSP", "Did you mean 'dsp'"),
        ("deepspeed", "Did you mean 'deepspeed-ulysses'"),
        ("DeepSpeed_Ulysses", "Did you mean 'deepspeed-ulysses'"),
        ("ring-attention", "Did you mean 'ring'"),
        ("ring_self_attention", "Did you mean 'rsa'"),
        ("context-parallel", "Did you mean 'ring'"),
        ("kv_all_gather", "Did you mean 'kv-gather'"),
        ("tp", "Did you mean 'megatron-tp'"),
        ("rsa:reduce-scater", "Did you mean 'reduce-scatter'"),
        ("dsp:acros=ring", "Did you mean 'across'"),
        ("rsa:reduce-scatter=maybe", "a flag"),
        ("ulysses:shard-axis", "needs a value"),
        ("", "unknown strategy ''"),
    ],
)
def test_mistakes_are_explained(text: str, message: str) -> None:
    """The nearest valid name or value is named."""
    with pytest.raises(UnknownStrategyError, match=message):
        load(text)


def test_known_names_are_known() -> None:
    """Every registered name passes the check that loads nothing."""
    for name in places():
        check_name(f"{name}:whatever")


def test_nothing_outside_branches_on_a_name() -> None:
    """Only the registry, the hints and the plots' colours have a strategy's name as a text."""
    strategies, plots = ROOT / "strategies", ROOT / "report" / "plots"
    allowed = {strategies / "registry.py", strategies / "names.py", plots / "style.py"}
    names = set(places())
    for path in set(ROOT.rglob("*.py")) - allowed:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                assert node.value not in names, f"{path}:{node.lineno}"


def test_the_model_knows_no_strategy() -> None:
    """spbench/model/ imports the strategies' seams and no strategy, in code or in words."""
    for path in (ROOT / "model").glob("*.py"):
        text = path.read_text().lower()
        assert not any(name in text for name in ("dsp", "ulysses", "megatron", "rsa"))
