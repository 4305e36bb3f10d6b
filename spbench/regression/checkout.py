"""Checks out another commit into a folder of its own, for ranks to run, and asks its code."""

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from spbench.regression import tree_answers
from spbench.results.temporary import temporary_folder
from spbench.results.variables import without_passwords
from spbench.workload.case import Case

INSTEAD = (
    "Measure each commit with 'spbench run' where it is installed, and judge with "
    "'spbench compare A B'"
)

TOOLS = {"setup.py", "conftest.py", "noxfile.py"}
"""Files of Python at the top of a tree that build or test it, and that nobody imports."""


class CheckoutError(Exception):
    """The reason why a revision cannot be measured."""


@dataclass(frozen=True, kw_only=True)
class Checkout:
    """A folder that holds the code of a commit, perhaps with changes."""

    tree: Path
    commit: str

    def environment(self) -> Mapping[str, str]:
        """Variables that make Python find this tree's packages and modules before any other's.

        Raises CheckoutError if the tree has neither: installed code would run instead.
        """
        places = (self.tree, self.tree / "src")
        # A module at the top of a tree whose packages are elsewhere may hide one of theirs.
        roots = sorted(filter(_holds_code, places), key=lambda place: not _has_packages(place))
        if not roots:
            raise CheckoutError(
                f"{self.commit[:12]} holds no Python package or module at its top or under src/. "
                f"{INSTEAD}"
            )
        earlier = os.environ.get("PYTHONPATH", "")
        paths = [*map(str, roots), *([earlier] if earlier else [])]
        return {"PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1"}

    def _answers(self, question: str, lines: Iterable[str]) -> list[str]:
        """Answers of this tree's code (``tree_answers``), one for each line unless it fails."""
        done = subprocess.run(
            [sys.executable, tree_answers.__file__, question],
            input="".join(f"{line}\n" for line in lines),
            env={**os.environ, **self.environment()},
            capture_output=True,
            text=True,
            check=False,
        )
        mark = tree_answers.MARK
        printed = done.stdout.splitlines()
        return [line.removeprefix(mark) for line in printed if line.startswith(mark)]

    def accepted(self, cases: Sequence[Case]) -> list[Case]:
        """Those of ``cases`` that this tree's strategies would run, which may not be what the
        present ones would; none if its code is too old to answer."""
        # As ranks get it: without defaults, which an older tree may not know.
        lines = [case.model_dump_json(by_alias=True, exclude_defaults=True) for case in cases]
        answers = self._answers("runs", lines) if lines else []
        if len(answers) != len(lines):
            return []
        return [case for case, answer in zip(cases, answers, strict=True) if answer]

    def check_own(self, modules: Iterable[str]) -> None:
        """Raises CheckoutError if none of these modules lies in this tree: then the installed code
        would be compared with itself."""
        files = [answer for answer in self._answers("file", modules) if answer]
        top = self.tree.resolve()
        if files and not any(Path(file).resolve().is_relative_to(top) for file in files):
            raise CheckoutError(
                f"base and head would run the same code, as installed in {files[-1]}: the commit "
                f"has none of it at its top or under src/. {INSTEAD}"
            )


def _has_packages(folder: Path) -> bool:
    return any(folder.glob("*/__init__.py"))


def _holds_code(folder: Path) -> bool:
    """Whether Python would import something from here: a package, or a plug-in of a single file."""
    return _has_packages(folder) or any(x.name not in TOOLS for x in folder.glob("*.py"))


def work_tree() -> Checkout:
    """The repository around the current folder, as it is now. Raises CheckoutError."""
    return Checkout(tree=Path(_git("rev-parse", "--show-toplevel")), commit=_commit("HEAD"))


@contextmanager
def checked_out(revision: str) -> Iterator[Checkout]:
    """Checks out ``revision`` for as long as the context lasts. Raises CheckoutError."""
    commit = _commit(revision)
    with temporary_folder("spbench-base-") as folder:
        tree = folder / "tree"
        tree.mkdir()
        # An index of its own leaves what is staged in the repository as it is. git runs at the
        # top, since in a subfolder it would write that subfolder alone.
        from_top = ("-C", str(work_tree().tree))
        index = {"GIT_INDEX_FILE": str(folder / "index")}
        _git(*from_top, "read-tree", commit, variables=index)
        _git(*from_top, "checkout-index", "--all", f"--prefix={tree}/", variables=index)
        yield Checkout(tree=tree, commit=commit)


def _commit(revision: str) -> str:
    _git("rev-parse", "--git-dir")  # git explains best what is wrong with the repository
    try:
        return _git("rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}")
    except CheckoutError as error:
        raise CheckoutError(
            f"git finds no such commit ({error}). A shallow clone lacks most commits: fetch it "
            f"('git fetch origin BRANCH', or fetch-depth: 0 in CI), or give another commit"
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
        raise CheckoutError(without_passwords(why.removeprefix("fatal: "))) from None
    return done.stdout.decode().strip()
