"""The documentation site: its list of pages is whole, and built pages ask nobody on the network."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONFIG = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")


def listed() -> set[str]:
    """Pages that the navigation names."""
    return set(re.findall(r"([\w/.-]+\.md)$", CONFIG.partition("\nnav:\n")[2], re.MULTILINE))


def test_the_navigation_has_every_page() -> None:
    """Those of docs/, and the top's three; decisions and the log have lists of their own."""
    pages = {path.name for path in ROOT.glob("docs/*.md")}
    lists = {"decisions/README.md", "log/README.md"}
    assert listed() == pages | lists | {"index.md", "contributing.md", "changes.md"}


def test_lists_name_every_page_of_their_folder() -> None:
    for folder in ("decisions", "log"):
        text = (ROOT / "docs" / folder / "README.md").read_text(encoding="utf-8")
        pages = {path.name for path in (ROOT / "docs" / folder).glob("[0-9]*.md")}
        assert set(re.findall(r"\]\(([0-9][^)/]*\.md)\)", text)) == pages


@pytest.mark.skipif(find_spec("mkdocs") is None, reason="make docs installs it")
def test_built_pages_ask_nobody_on_the_network(tmp_path: Path) -> None:
    """Every link and anchor leads somewhere; scripts, styles and pictures are the site's own."""
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "-d", tmp_path]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=120)
    built = [path.read_text(encoding="utf-8") for path in tmp_path.rglob("*.html")]
    assert len(built) > 20
    elsewhere = r"=\"?(https?:)?//"
    loads = rf"<(script|img|iframe)[^>]*\bsrc{elsewhere}|<link[^>]*stylesheet[^>]*href{elsewhere}"
    assert not any(re.search(loads, page) for page in built)
