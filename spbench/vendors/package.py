"""A strategy that is an installed package's own code: whether pip has it, and which version.

Its transfers do not pass ``comm/``, so a witness counts them in steps outside the clock
(``worker/witness.py``), and nothing can silence them. A package is imported when its code first
runs, never by a command that does not name it.
"""

from __future__ import annotations

import json
import sys
from abc import ABC
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from inspect import getsource
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import torch
from torch import distributed as dist

from spbench.comm.collectives import Collectives
from spbench.comm.nccl_gloo import ProcessGroupTransport
from spbench.errors import Failure
from spbench.strategies.fixed_axis import FixedAxis
from spbench.workload.workload import Workload


@dataclass(frozen=True, kw_only=True)
class Packaged(FixedAxis, ABC):
    """A strategy of another package, with the limits that come from how it is installed."""

    package: ClassVar[str]
    """As pip names it; also the extra that installs it."""
    command: ClassVar[str] = ""
    """What installs it, where no extra does."""
    needs: ClassVar[tuple[str, ...]] = ()
    """Further packages without which it does not run."""
    needs_gpu: ClassVar[bool] = False
    """Whether it is code for GPUs alone."""

    @property
    def only_measured(self) -> str | None:
        return (
            f"{self.package} sends by itself, between processes alone: measure it on all its ranks"
        )

    def misfit(self, workload: Workload) -> str | None:
        return super().misfit(workload) or self._not_here()

    def _not_here(self) -> str | None:
        missing = [name for name in (self.package, *self.needs) if installed(name) is None]
        if missing:
            command = self.command or f"pip install 'spbench[{self.package}]'"
            verb = "is" if len(missing) == 1 else "are"
            return f"{' and '.join(missing)} {verb} not installed; {command}"
        if self.needs_gpu and not torch.cuda.is_available():
            return f"{self.package} is code for GPUs alone, and torch sees none here"
        return None

    @property
    def origin(self) -> str:
        """The package that is installed; its commit only where it came from a repository."""
        found = installed(self.package)
        if found is None:
            return ""
        origin = json.loads(found.read_text("direct_url.json") or "{}")
        commit = origin.get("vcs_info", {}).get("commit_id", "")
        return f"{self.package} {found.version}{f' ({commit[:12]})' if commit else ''}"


def installed(package: str) -> Distribution | None:
    """What pip has of a package; None: nothing. Imports nothing of it."""
    try:
        return distribution(package)
    except PackageNotFoundError:
        return None


def group_of(comm: Collectives) -> dist.ProcessGroup:
    """torch's group of the ranks that share a sequence."""
    transport = comm.transport
    assert isinstance(transport, ProcessGroupTransport), "a package sends between processes"
    return transport.group


@contextmanager
def standing_in(modules: Mapping[str, Mapping[str, Any]]) -> Iterator[None]:
    """Inside, an import of a module of these names finds one that has these and nothing else."""
    made = {name: ModuleType(name) for name in modules}
    for name, module in made.items():
        vars(module).update(modules[name])
    sys.modules.update(made)
    try:
        yield
    finally:  # others look for it by name later on, and are to find what is installed
        for name in made:
            del sys.modules[name]


@cache
def patched(module: str, names: tuple[str, ...], changes: tuple[tuple[str, str], ...]) -> Any:
    """Functions and classes of a package with a few words of their source changed.

    The package itself stays as it is: they are made anew, beside the stock ones.

    Parameters
    ----------
    module
        Where they are defined.
    names
        Those to make anew; each calls the others' new form.
    changes
        What stands in the source, and what is to stand there, in pairs.

    Returns
    -------
    SimpleNamespace
        The new ones by name.

    Raises
    ------
    Failure
        Of a version whose source does not have the words.
    """
    stock = import_module(module)
    source = "\n".join(getsource(getattr(stock, name)) for name in names)
    for old, new in changes:
        if old not in source:
            raise Failure(f"{module} has no {old!r} to patch; take the version in docs/vendors.md")
        source = source.replace(old, new)
    space = dict(vars(stock))
    exec(source, space)
    return SimpleNamespace(**{name: space[name] for name in names})
