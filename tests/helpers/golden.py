"""Texts as users see them, kept beside the tests: one file a module of tests, a section a text.

``golden(text)`` compares with what is kept for the test that asks; ``golden(text, "as markdown")``
where a test has several. ``pytest --rewrite-golden`` keeps what the product says now: look at the
diff before you commit it.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "golden"
NOW = {r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ": "NOW"}
TRACEBACK = {r"spbench-\w+\.log": "spbench-RANDOM.log"}
HOST = {rf"\({re.escape(socket.gethostname())}\)": "(HOST)"}
"""For ``hide``: when a line was written, the name of a temporary file, and of this machine beside
a rank or a node."""
HEADER = re.compile(r"^=== (.+)\n", re.M)

Golden = Callable[..., None]
"""``golden(text, name="", hide={})``: ``hide`` maps patterns of what differs from run to run to
what stands in its place."""


def read(path: Path) -> dict[str, str]:
    """The sections of a golden file, by their headers."""
    parts = HEADER.split(path.read_text("utf-8"))[1:] if path.exists() else []
    return {name: text.rstrip("\n") for name, text in zip(parts[::2], parts[1::2], strict=True)}


def write(path: Path, sections: dict[str, str]) -> None:
    """A file of these sections, sorted by header; no file without sections."""
    if not sections:
        path.unlink(missing_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "\n".join(f"=== {name}\n{text}\n" for name, text in sorted(sections.items()))
    path.write_text(text, "utf-8")


def asked_by(section: str) -> str:
    """The function whose text a section keeps: its header up to parameters and the text's name."""
    return re.split(r"\[| - ", section, maxsplit=1)[0]


@pytest.fixture(scope="module")
def _sections(request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    """What is kept for a module; sections of tests that are no longer there do not stay."""
    module = Path(str(request.path)).relative_to(FOLDER.parent)
    path = (FOLDER / module).with_suffix(".txt")
    sections = read(path)
    stale = [name for name in sections if not hasattr(request.module, asked_by(name))]
    if not request.config.getoption("rewrite_golden"):
        assert not stale, f"{path} keeps texts of tests that are gone: {stale}"
        yield sections
        return
    yield sections
    write(path, {name: text for name, text in sections.items() if name not in stale})


@pytest.fixture
def golden(
    request: pytest.FixtureRequest,
    _sections: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Golden:
    """Compares a text with the one that is kept for this test."""
    rewrites = request.config.getoption("rewrite_golden")
    folders = {
        str(request.getfixturevalue("tmp_path")): "TMP",
        str(tmp_path_factory.getbasetemp()): "BASETEMP",
        str(FOLDER.parents[1]): "REPOSITORY",
    }

    def compare(text: object, name: str = "", hide: dict[str, str] | None = None) -> None:
        said = str(text)
        for folder, stands_for in folders.items():
            said = said.replace(folder, stands_for)
        for pattern, stands_for in (hide or {}).items():
            said = re.sub(pattern, stands_for, said)
        said = "\n".join(line.rstrip() for line in said.splitlines()).rstrip("\n")
        section = f"{request.node.name} - {name}" if name else request.node.name
        if rewrites:
            _sections[section] = said
        assert said == _sections.get(section), f"{section}: pytest --rewrite-golden keeps it"

    return compare
