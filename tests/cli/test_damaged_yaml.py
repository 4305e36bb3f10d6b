"""Damaged YAML files by the hundred, through the command line: exit 2 with file and line."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.command_line import spbench
from helpers.examples import ALL, examples
from helpers.golden import Golden
from helpers.in_process import Said, inside
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from spbench.errors import DONE, USAGE
from spbench.workload.catalogue import load_text

WORKLOAD = """\
# a model of two axes
version: 1
name: made-up  # of nobody
source: "a test"
axes: {time: 4, space: 6}
hidden: 24
heads: 4
depth: 1
block:
  - attention: space
  - attention: time
  - cross_attention: 5
  - mlp: 2
modulation: per_sample
batch: 2
dtype: float32
mode: train
checkpointing: none
"""
SWEEP = """\
# cells of one model
version: 1
name: made-up
source: "a test"
workloads: mine.yaml
strategies: [dsp, rsa:reduce-scatter]
gpus: [1, 2]  # few
launches: 2
reference: dsp
set: {checkpointing: none}
matrix: {axes.time: [4, 5]}
include:
  - {workload: mine.yaml, gpus: 3, set: {batch: 3}}
exclude:
  - {gpus: 1, axes.time: 5}
"""
ODD = [
    *(
        "0",
        "-1",
        "1.5",
        "1e4",
        "1e999",
        ".nan",
        ".inf",
        "~",
        "true",
        "no",
        "''",
        "' '",
        "2001-01-01",
    ),
    *("9" * 12, "9" * 30, "9" * 5000, "0x" + "F" * 90, "'2'", "two", "[]", "{}", "[1, [2, [3]]]"),
    *("{a: 1, a: 2}", "&a 3", "*a", "&a [*a]", "!!int ''", "!!binary ==", "!!set {a}", "!no 1"),
    *('"\\ud800"', '"\\0.yaml"', '"\\e[31mred"', "|", ">-", "%", "@x", "`x`", "- 1", "? x", "x: y"),
    *("all", "dsp", "dsp:none", "rsa:shard-axis=none", "no.yaml", ".", "..", "/", "mine.yaml/x"),
    "é" * 3,
    "x" * 3000,
]
"""In place of a value."""
NESTS = ["[" * 30, "{a: " * 30, "- " * 30, "? " * 30, "[" * 3000, "!!seq [" * 30]

Damage = Callable[[st.DrawFn, bytes], bytes]


def flipped(draw: st.DrawFn, content: bytes) -> bytes:
    """Changes one bit or more of a byte."""
    at = draw(st.integers(0, max(0, len(content) - 1)))
    changed = bytes(byte ^ draw(st.integers(1, 255)) for byte in content[at : at + 1])
    return content[:at] + changed + content[at + 1 :]


def cut(draw: st.DrawFn, content: bytes) -> bytes:
    return content[: draw(st.integers(0, len(content)))]


def tabbed(draw: st.DrawFn, content: bytes) -> bytes:
    at = draw(st.integers(0, len(content)))
    return content[:at] + b"\t" + content[at:]


def doubled(draw: st.DrawFn, content: bytes) -> bytes:
    """Repeats a line."""
    lines = content.splitlines(keepends=True)
    at = draw(st.integers(0, len(lines)))
    return b"".join([*lines[:at], *lines[max(0, at - 1) :]])


def swapped(draw: st.DrawFn, content: bytes) -> bytes:
    """Swaps two lines."""
    lines = content.splitlines(keepends=True)
    if lines:
        one, other = (draw(st.integers(0, len(lines) - 1)) for _ in range(2))
        lines[one], lines[other] = lines[other], lines[one]
    return b"".join(lines)


def replaced(draw: st.DrawFn, content: bytes) -> bytes:
    """Replaces a value by another."""
    values = [found.span(1) for found in re.finditer(rb"[:\-,\[] *([^ :,\[\]{}\n]+)", content)]
    start, end = draw(st.sampled_from(values)) if values else (0, 0)
    return content[:start] + draw(st.sampled_from(ODD)).encode() + content[end:]


def nested(draw: st.DrawFn, content: bytes) -> bytes:
    at = draw(st.integers(0, len(content)))
    return content[:at] + draw(st.sampled_from(NESTS)).encode() + content[at:]


def anchored(draw: st.DrawFn, content: bytes) -> bytes:
    """Adds an anchor, and further on a reference to it."""
    values = [found.end() for found in re.finditer(rb"[:\-,] ", content)]
    first, second = sorted(draw(st.sampled_from(values)) for _ in range(2)) if values else (0, 0)
    return content[:first] + b"&a " + content[first:second] + b"*a " + content[second:]


def littered(draw: st.DrawFn, content: bytes) -> bytes:
    """Inserts bytes of any kind."""
    at = draw(st.integers(0, len(content)))
    return content[:at] + draw(st.binary(min_size=1, max_size=6)) + content[at:]


DAMAGES: list[Damage] = [
    *(flipped, cut, tabbed, doubled, swapped, replaced, replaced, nested, anchored, littered)
]


@st.composite
def damaged(draw: st.DrawFn, text: str) -> bytes:
    content = text.encode()
    for damage in draw(st.lists(st.sampled_from(DAMAGES), min_size=1, max_size=2)):
        content = damage(draw, content)
    return content


def of_workload(path: Path) -> Said:
    return inside("show", str(path), "-s", "rsa", "-g", "2", "--json")


def of_sweep(path: Path) -> Said:
    done = inside("run", "--sweep", str(path), "--dry-run", "--json", "--device", "cpu")
    return replace(done, out=re.sub('"estimated_launch_s": .*', "", done.out))  # a rate is timed


@pytest.fixture(autouse=True)
def no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operations of each rank, which take a second to count, say nothing about a file."""
    monkeypatch.setattr("spbench.projection.dryrun.rank_work.rank_works", lambda cells: ({}, []))


KINDS = {"workload": (WORKLOAD, of_workload), "sweep": (SWEEP, of_sweep)}


@pytest.mark.parametrize("kind", KINDS)
def test_a_thousand_damaged_files(tmp_path: Path, kind: str) -> None:
    """Each is refused with its name and a line, in one message; or it is still valid, as where a
    comment was hit, and then it loads."""
    text, loaded = KINDS[kind]
    (tmp_path / "mine.yaml").write_text(WORKLOAD)
    path = tmp_path / "bench.yaml"
    codes: Counter[int] = Counter()

    @examples(750, suppress_health_check=list(HealthCheck))
    @given(damaged(text))
    def each(content: bytes) -> None:
        path.write_bytes(content)
        done = loaded(path)
        codes[done.code] += 1
        assert done.code in (DONE, USAGE), done.err
        if done.code == USAGE:
            assert re.match(rf"Error: {re.escape(str(path))}:\d+: \S", done.err), done.err
            assert done.out == ""
            assert done.err.count("\n") <= 2
        else:
            assert (done.out.startswith(("[", "{")), done.err) == (True, "")

    each()
    assert codes[USAGE] >= (520 if ALL else 65), codes
    assert codes[DONE] >= (20 if ALL else 1), codes


@examples(150, suppress_health_check=list(HealthCheck))
@given(st.text(st.characters(exclude_categories=["Cc", "Cs", "Cn", "Zl", "Zp"]), max_size=30))
def test_damage_in_a_comment_does_none(comment: str) -> None:
    """Any bytes in a comment leave the file valid."""
    commented = WORKLOAD.replace("# of nobody", f"# {comment.replace(chr(0xFEFF), '')}")
    assert load_text(commented, "here") == load_text(WORKLOAD, "here")


WAYS = {
    "BOM": lambda text: text.encode("utf-8-sig"),
    "CRLF": lambda text: text.replace("\n", "\r\n").encode(),
    "both": lambda text: text.replace("\n", "\r\n").encode("utf-8-sig"),
    "CR": lambda text: text.replace("\n", "\r").encode(),
    "no end of line": lambda text: text.rstrip().encode(),
    "blank lines": lambda text: text.replace("\n", "\n\n").encode(),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_way_a_file_is_saved_does_not_matter(tmp_path: Path, kind: str, way: str) -> None:
    """Files of other editors and systems mean the same."""
    text, loaded = KINDS[kind]
    (tmp_path / "mine.yaml").write_bytes(WAYS[way](WORKLOAD))
    path = tmp_path / "bench.yaml"
    path.write_bytes(text.encode())
    plain = loaded(path)
    path.write_bytes(WAYS[way](text))
    assert (plain.code, plain.err) == (DONE, "")
    assert loaded(path) == plain


BOMB = "a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\nd: [*c, *c]\n"


@pytest.mark.parametrize(
    ("content", "line", "said"),
    [
        (b"", 1, "holds nothing"),
        (b"- 1\n- 2\n", 1, "holds a list"),
        (b"version: 1\n\tname: a\n", 2, "not YAML"),
        (b"version: 1\nname: a\nname: b\n", 3, "key 'name' is given twice"),
        (b"version: 1\nnmae: a\n", 2, "unknown key 'nmae'. Did you mean 'name'?"),
        (b"version: 2\nname: a\n", 1, "version cannot be 2; it may be 1"),
        ("version: 1\nname: süß\n".encode("latin-1"), 2, "not UTF-8 text"),
        (BOMB.encode(), 2, "aliases (*a) are not allowed"),
        (None, 1, "is a folder"),
    ],
)
@pytest.mark.parametrize("flag", ["--workload", "--sweep"])
def test_what_is_wrong_is_said(
    tmp_path: Path, flag: str, content: bytes | None, line: int, said: str
) -> None:
    """The message is right for a workload and for a sweep."""
    path = tmp_path / "bench.yaml"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    done = inside("run", flag, str(path), "--dry-run", "--device", "cpu")
    assert (done.code, done.out) == (USAGE, "")
    assert re.match(rf"Error: {re.escape(str(path))}:{line}: ", done.err), done.err
    assert said in done.err


@pytest.mark.parametrize("content", [BOMB.encode(), b"\xff\xfe\x00", None], ids=["bomb", "?", "."])
def test_a_process_says_it_too(tmp_path: Path, content: bytes | None, golden: Golden) -> None:
    """Exit 2, no traceback, no torch, nothing started and nothing written."""
    path = tmp_path / "bench.yaml"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    done = spbench(tmp_path, "run", "-w", "bench.yaml")
    assert (done.code, done.out) == (USAGE, "")
    golden(done.err)
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("old", "new", "line", "said"),
    [
        ("rsa:reduce-scatter", "rsa:reduce", 6, "strategy 'rsa' has no option 'reduce'. Did you"),
        ("rsa:reduce-scatter", "ulysses", 13, "strategy 'ulysses' cannot run made-up on 3 ranks"),
        ("gpus: [1, 2]", "gpus: [1, 7]", 5, "cannot run made-up on 7 ranks: no axis has 7"),
        ("gpus: [1, 2]", "gpus: [1, 2000]", 5, "cannot run made-up on 2,000 ranks: "),
        ("rsa:reduce-scatter", "rsa:shard-axis=x", 5, "there is no axis 'x' to shard"),
    ],
)
def test_what_cannot_run_is_said_with_its_line(
    tmp_path: Path, old: str, new: str, line: int, said: str
) -> None:
    """Only a strategy knows that it cannot run; the message has the line all the same."""
    (tmp_path / "mine.yaml").write_text(WORKLOAD.replace("heads: 4", "heads: 2"))
    path = tmp_path / "bench.yaml"
    path.write_text(SWEEP.replace(old, new))
    done = of_sweep(path)
    assert done.code == USAGE
    assert done.err.startswith(f"Error: {path}:{line}: "), done.err
    assert said in done.err
