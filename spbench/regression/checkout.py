"""Another commit of the code at hand, in a folder of its own, and how ranks come to run it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from spbench.regression import locate_modules

INSTEAD = (
    "Measure each commit with 'spbench run' where it is installed, and judge with "
    "'spbench compare A B'"
)


class CheckoutError(Exception):
    """A revision that cannot be measured, and why."""


@dataclass(frozen=True, kw_only=True)
class Checkout:
    """A tree of code."""

    tree: Path
    commit: str

    def environment(self) -> Mapping[str, str]:
        """Variables with which Python finds this tree's packages before any other's.

        Raises CheckoutError if it has none: another tree's code would run in its place.
        """
        roots = [root for root in (self.tree, self.tree / "src") if _has_packages(root)]
        if not roots:
            raise CheckoutError(
                f"{self.commit[:12]} holds no Python package at its top or under src/. {INSTEAD}"
            )
        earlier = os.environ.get("PYTHONPATH", "")
        paths = [*map(str, roots), *([earlier] if earlier else [])]
        return {"PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1"}

    def ask(self, script: str, text: str) -> list[str]:
        """The lines that a Python ``script`` prints when it reads ``text``, this tree's packages
        first. Raises CheckoutError if it has none."""
        done = subprocess.run(
            [sys.executable, script],
            input=text,
            env={**os.environ, **self.environment()},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout.splitlines()

    def check_own(self, modules: Iterable[str]) -> None:
        """Raises CheckoutError if none of these modules is one of this tree's: then what is
        installed, and the same for every tree, would be compared with itself."""
        lines = self.ask(locate_modules.__file__, "".join(f"{one}\n" for one in modules))
        mark = locate_modules.AT
        places = [line.removeprefix(mark) for line in lines if line.startswith(mark)]
        top = self.tree.resolve()
        if places and not any(Path(one).resolve().is_relative_to(top) for one in places):
            raise CheckoutError(
                f"both sides would run the same code, as installed in {places[-1]}: the commit has "
                f"none of it at its top or under src/. {INSTEAD}"
            )


def _has_packages(root: Path) -> bool:
    return next(root.glob("*/__init__.py"), None) is not None


def work_tree() -> Checkout:
    """The tree that the current folder lies in, as it is now. Raises CheckoutError."""
    top = _git("rev-parse", "--show-toplevel")
    return Checkout(tree=Path(top), commit=_commit("HEAD"))


@contextmanager
def checked_out(revision: str) -> Iterator[Checkout]:
    """The tree of ``revision``, while the context lasts. Raises CheckoutError."""
    commit = _commit(revision)
    with tempfile.TemporaryDirectory(prefix="spbench-base-") as folder:
        tree = Path(folder) / "tree"
        tree.mkdir()
        # An index of its own: what is staged in the repository stays as it is. From the top,
        # since in a subfolder git would write that alone.
        from_top = ("-C", str(work_tree().tree))
        index = {"GIT_INDEX_FILE": str(Path(folder) / "index")}
        _git(*from_top, "read-tree", commit, variables=index)
        _git(*from_top, "checkout-index", "--all", f"--prefix={tree}/", variables=index)
        yield Checkout(tree=tree, commit=commit)


def _commit(revision: str) -> str:
    _git("rev-parse", "--git-dir")  # what is wrong with the repository, git says best
    try:
        return _git("rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}")
    except CheckoutError as error:
        raise CheckoutError(
            f"git finds no such commit ({error}). A shallow clone lacks most: fetch it ('git fetch "
            f"origin BRANCH', or fetch-depth: 0 where a CI checks out); or give another"
        ) from None


def _git(*words: str, variables: Mapping[str, str] | None = None) -> str:
    try:
        done = subprocess.run(
            ["git", *words],
            capture_output=True,
            check=True,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **(variables or {})},
        )
    except OSError as error:
        raise CheckoutError(f"git cannot be run: {error.strerror}") from None
    except subprocess.CalledProcessError as error:
        lines = error.stderr.decode(errors="replace").splitlines()
        why = " ".join(line.strip() for line in lines if line.strip()) or "git failed"
        raise CheckoutError(why.removeprefix("fatal: ")) from None
    return done.stdout.decode().strip()
