"""Every registered strategy with each of its flags."""

from __future__ import annotations

from dataclasses import fields

from spbench.strategies.registry import load, places


def variants() -> list[str]:
    """Every registered strategy, and each once more with each of its flags set."""
    names_and_flags = []
    for name in places():
        flags = [f.name.replace("_", "-") for f in fields(load(name)) if f.default is False]
        names_and_flags += [name, *(f"{name}:{flag}" for flag in flags)]
    return names_and_flags
