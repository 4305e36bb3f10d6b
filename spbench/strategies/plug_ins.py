"""Strategies of other packages, which join through the entry-point group ``spbench.strategies``.

A package that is broken must not take the other strategies along: it is an error only where its
strategy is asked for by name, and is left out of ``all``.
"""

from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from spbench.errors import Failure
from spbench.strategies.names import BUILT_IN
from spbench.text import first_line

if TYPE_CHECKING:
    from spbench.strategies.base import Strategy

GROUP = "spbench.strategies"


class BrokenPlugInError(Failure, ValueError):
    """A plug-in whose strategy cannot be loaded; the message says which, and why."""


def plug_ins() -> dict[str, str]:
    """``module:class`` by the strategy's name, but for built-in names. Loads nothing."""
    points = entry_points(group=GROUP)
    return {point.name: point.value for point in points if point.name not in BUILT_IN}


def class_of(name: str, place: str) -> "type[Strategy]":
    """The class of a plug-in. Imports torch. Raises BrokenPlugInError."""
    try:
        return class_at(place)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and error.name == "torch":
            raise  # no strategy can be loaded
        raise BrokenPlugInError(
            f"the plug-in strategy {name!r} ({place}) cannot be loaded: {type(error).__name__}: "
            f"{first_line(error)}; mend its package, or uninstall it"
        ) from error


def class_at(place: str) -> "type[Strategy]":
    """The class at ``module:class``. Imports torch. Raises whatever the module does."""
    module, _, attribute = place.partition(":")
    if not attribute:
        raise TypeError(f"{place!r} names no class; write module:Class")
    from spbench.strategies.base import Strategy

    found: type[Strategy] = getattr(import_module(module), attribute)
    if not isinstance(found(), Strategy):
        raise TypeError(f"{attribute} is not a Strategy")
    return found


def broken_plug_ins() -> dict[str, str]:
    """Why plug-ins cannot be loaded, by the names of those that cannot, which ``all`` leaves out.
    Imports all of them; without torch none counts as broken."""
    found = {}
    for name, place in plug_ins().items():
        try:
            class_of(name, place)
        except BrokenPlugInError as error:
            found[name] = str(error)
        except ModuleNotFoundError:
            break
    return found
