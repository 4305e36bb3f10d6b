"""Pages of the documentation site that lie outside docs/: a hook of mkdocs.

The README is the first page. A link of any page to a file of the repository leads to a page with
that file's text, so that pages link alike here and on a code host.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changes.md",
}
"""Files of the repository's top that are pages, and their names in the site."""
LINK = re.compile(r"(\]\()([^)#:\s]+)((?:#[^)\s]*)?\))")
LANGUAGES = {".py": "python", ".toml": "toml", ".yaml": "yaml", ".sh": "sh"}
FENCES = re.compile(r"(^ *```.*?^ *```)", re.DOTALL | re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the top's pages, and one for each file of the repository that some page links to."""
    linked: set[str] = set()
    for page in [*ROOT.glob("docs/**/*.md"), *(ROOT / name for name in PAGES)]:
        folder = page.relative_to(ROOT).parent.as_posix()
        for _, target, _ in LINK.findall(page.read_text(encoding="utf-8")):
            linked.add(normpath(f"{folder}/{target}"))
    for name, page_name in PAGES.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, page_name, content=text))
    for name in sorted(linked):
        if name not in PAGES and not name.startswith("docs/") and (ROOT / name).exists():
            files.append(File.generated(config, page_of(name), content=source_page(name)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Turns links between files of the repository into links between pages, but in code."""
    here = page.file.src_uri
    repository = next((name for name, other in PAGES.items() if other == here), f"docs/{here}")

    def rewritten(match: re.Match[str]) -> str:
        target = normpath(f"{PurePosixPath(repository).parent}/{match[2]}")
        return f"{match[1]}{relpath(page_of(target), PurePosixPath(here).parent)}{match[3]}"

    parts = FENCES.split(markdown)
    return "".join(part if i % 2 else LINK.sub(rewritten, part) for i, part in enumerate(parts))


def page_of(name: str) -> str:
    """The site's name for the page of a file of the repository."""
    if name in PAGES or name.startswith("docs/"):
        return PAGES.get(name, name.removeprefix("docs/"))
    return f"source/{name}.md"


def source_page(name: str) -> str:
    """A page with the text of a file, or with what a folder holds."""
    path = ROOT / name
    names = sorted(each.name for each in path.iterdir() if each.is_file()) if path.is_dir() else []
    texts = {f"{name}/{each}": path / each for each in names} or {name: path}
    blocks = (
        f"`{each}`\n\n````{LANGUAGES.get(path.suffix, 'text')}\n{path.read_text('utf-8')}````"
        for each, path in texts.items()
    )
    return f"# {name}\n\n" + "\n\n".join(blocks) + "\n"
