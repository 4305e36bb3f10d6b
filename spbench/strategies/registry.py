"""Strategies by name. Checking a name imports no torch; loading a strategy does.

A strategy is written ``name``, ``name:option`` or ``name:option=value``, with ``:`` between
options. Plug-ins are strategies of other packages.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from spbench.errors import Failure
from spbench.strategies.names import BUILT_IN, own_name
from spbench.strategies.plug_ins import broken_plug_ins, class_at, class_of, plug_ins
from spbench.text import did_you_mean
from spbench.workload.yaml_file import short

if TYPE_CHECKING:
    from spbench.strategies.base import Strategy
    from spbench.workload.mesh import CaseMesh

ACROSS = ("ring", "kv-gather", "attention-2d")
"""Names of strategies that may attend across groups of ranks that share heads."""
EXCHANGES = ("ulysses", *ACROSS, "usp")
"""Names of strategies that may attend to all axes joined, or across groups that cut weights."""


class UnknownStrategyError(Failure, ValueError):
    """A name or an option of a strategy that does not exist, or a value that it does not take."""


def places() -> dict[str, str]:
    """``module:class`` of each strategy, the built-in ones first."""
    return BUILT_IN | plug_ins()


def check_name(text: str) -> None:
    """Raises UnknownStrategyError unless the name before the options is known. Loads nothing."""
    name = text.split(":", maxsplit=1)[0]
    known = list(BUILT_IN if name in BUILT_IN else places())  # plug-ins are looked for on disk
    if name not in known:
        raise UnknownStrategyError(
            f"unknown strategy {short(name)}. {_near(own_name(name), known)}"
            f"The strategies are {', '.join(known)}"
        )


def module_of(text: str) -> str:
    """The module of the strategy that ``text`` names, options or not. Loads nothing."""
    check_name(text)
    return places()[text.partition(":")[0]].partition(":")[0]


def _near(word: str, known: Sequence[str]) -> str:
    """'Did you mean ...? ' with a space behind, or nothing."""
    return f"{did_you_mean(word, known, cutoff=0.5)} ".lstrip()


def expand_names(texts: Sequence[str]) -> list[str]:
    """Names from texts such as ``dsp,rsa`` and ``all``, each once, in order. Raises
    UnknownStrategyError. Loads no built-in strategy, and plug-ins only for ``all``."""
    names: dict[str, None] = {}
    for text in (part.strip() for group in texts for part in group.split(",")):
        for name in _sound() if text == "all" else [text]:
            check_name(name)
            names[name] = None
    return list(names)


def _sound() -> list[str]:
    left_out = broken_plug_ins()
    return [name for name in places() if name not in left_out]


def load(text: str) -> "Strategy":
    """The strategy that ``text`` names, with its options. Imports torch. Raises
    UnknownStrategyError, and BrokenPlugInError for a plug-in that cannot be loaded."""
    check_name(text)
    name, *settings = text.split(":")
    kind = class_at(BUILT_IN[name]) if name in BUILT_IN else class_of(name, places()[name])
    known = {field.name.replace("_", "-"): field for field in fields(kind)}
    options: dict[str, Any] = {}
    for setting in settings:
        option, given, value = setting.partition("=")
        if option not in known:
            offered = f"Its options are {', '.join(known)}" if known else "It has no options"
            raise UnknownStrategyError(
                f"strategy {name!r} has no option {option!r}. {_near(option, list(known))}{offered}"
            )
        field = known[option]
        options[field.name] = _parse(name, option, value if given else None, field.default)
    return kind(**options)


def forms_of(names: Sequence[str]) -> list[str]:
    """The strategies of these names with the options that each says people run it with. Imports
    torch. Raises as ``load`` does."""
    return [f"{name}:{form}" for name in names for form in load(name).forms]


def in_mesh(text: str, mesh: "CaseMesh") -> "Strategy":
    """The strategy of a case: as ``load``, in groups of ranks where its mesh has several."""
    own = load(text)
    if mesh.cfg == 1:
        return own
    from spbench.strategies.branch_groups import BranchGroups

    return BranchGroups(own=own, cfg=mesh.cfg)


FLAGS: Mapping[str | None, bool] = {None: True, "true": True, "false": False}


def _parse(name: str, option: str, value: str | None, default: Any) -> Any:
    """``value`` as the type of the option's default; a bare option means true."""
    if isinstance(default, bool):
        if value in FLAGS:
            return FLAGS[value]
        raise UnknownStrategyError(
            f"{name}:{option}={value}: a flag; write {option}, or =true, =false"
        )
    if not value:
        raise UnknownStrategyError(f"{name}:{option} needs a value: {name}:{option}={default}")
    try:
        return type(default)(value)
    except ValueError:
        kind = {int: "a whole number", float: "a number"}.get(type(default), type(default).__name__)
        raise UnknownStrategyError(f"{name}:{option}={value}: needs {kind}") from None
