"""YAML to workloads: every mistake is a WorkloadError with place, reason and remedy."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from helpers.examples import examples
from helpers.golden import Golden
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from spbench.workload.block import Attention, Mlp
from spbench.workload.catalogue import (
    load_file,
    load_text,
    overrides_of,
    refuse_undone,
    with_settings,
)
from spbench.workload.workload import Workload
from spbench.workload.yaml_file import MAX_BYTES, WorkloadError, parse, suggestion

VALID = """\
version: 1
name: made-up
source: "a test"
axes: {time: 8, space: 12}
hidden: 48
heads: 6
depth: 2
block:
  - attention: space
  - attention: time
  - cross_attention: 9
  - mlp: 4
modulation: per_sample
batch: 2
dtype: float32
mode: train
checkpointing: none
"""


def changed(old: str, new: str) -> str:
    assert VALID.count(old) == 1
    return VALID.replace(old, new)


def documents(value: str) -> str:
    """With documents along time, on line 11."""
    return changed("- attention: time", f"- attention: time\n    documents: {value}")


def boxes(fields: str, axes: str = "[time, space]") -> str:
    """With an attention in line 9 that has these fields."""
    return changed("- attention: space", f"- {{attention: {axes}, {fields}}}")


def written(folder: Path, content: bytes) -> Path:
    path = folder / "bench.yaml"
    path.write_bytes(content)
    return path


def refused(path: Path) -> str:
    with pytest.raises(WorkloadError) as caught:
        load_file(path)
    return str(caught.value)


def test_a_valid_file_is_loaded(tmp_path: Path) -> None:
    """Every field arrives, numbers as numbers and sublayers in order."""
    work = load_file(written(tmp_path, VALID.encode()))
    assert (work.name, work.axes, work.batch) == ("made-up", {"time": 8, "space": 12}, 2)
    assert work.block[0] == Attention(axes=("space",))
    assert work.block[-1] == Mlp(ratio=4.0)


@pytest.mark.parametrize(
    "content",
    [VALID.replace("\n", "\r\n").encode(), VALID.encode("utf-8-sig"), VALID.rstrip().encode()],
    ids=["CRLF", "BOM", "no end of line"],
)
def test_the_way_a_file_is_saved_does_not_matter(tmp_path: Path, content: bytes) -> None:
    """Windows line ends, a byte order mark and a missing last line end are read alike."""
    assert load_file(written(tmp_path, content)) == load_text(VALID, "text")


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("", 1, "holds nothing"),
        ("# only a comment\n", 1, "holds nothing"),
        ("- 1\n- 2\n", 1, "holds a list"),
        ("dsp-720m", 1, "holds a str"),
        (changed("hidden: 48", "\thidden: 48"), 5, "not YAML"),
        (changed("batch: 2", "hidden: 96"), 14, "key 'hidden' is given twice"),
        (changed("batch: 2", "batch: 010"), 14, "010 is 8 in YAML 1.1 and 10 in YAML 1.2; write"),
        (changed("batch: 2", "batch: 1:30"), 14, "1:30 is 90 in YAML 1.1, which counts it in six"),
        (changed("{time: 8, space: 12}", "{time: 8, time: 9}"), 4, "key 'time' is given twice"),
        (changed("hidden: 48", "hiden: 48"), 5, "unknown key 'hiden'. Did you mean 'hidden'?"),
        (changed("batch: 2", "zzz: 2"), 14, "unknown key 'zzz'. Known: version, name, source"),
        (changed("hidden: 48", "hidden: 1e4"), 5, "hidden is '1e4': input should be a valid int"),
        (changed("hidden: 48\n", ""), 1, "key 'hidden' is missing"),
        (changed("version: 1", "version: 2"), 1, "version cannot be 2; it may be 1"),
        (changed("float32", "float8"), 15, "it may be 'float32', 'float64', 'bfloat16'"),
        (changed("heads: 6", "heads: 5"), 6, "heads that fit: 1, 2, 3, 4, 6, 8"),
        (changed("heads: 6", "heads: 0"), 6, "heads is 0"),
        (changed("heads: 6", "heads: -6"), 6, "heads is -6"),
        (changed("heads: 6", "heads: 999999999999999"), 6, "heads is 999999999999999"),
        (changed("heads: 6", f"heads: 0x{'F' * 5000}"), 6, "too large a number"),
        (changed("heads: 6", f"heads: {'9' * 5000}"), 6, "cannot be read as int"),
        (changed("heads: 6", "heads: !!int ''"), 6, "'' cannot be read as int"),
        (changed("heads: 6", "heads: !!bool six"), 6, "'six' cannot be read as bool"),
        (changed("made-up", "2001-99-99"), 2, "cannot be read as timestamp"),
        (changed("made-up", "!!timestamp now"), 2, "cannot be read as timestamp"),
        (changed("made-up", "!!python/name:os.system"), 2, "not YAML"),
        (changed("made-up", "''"), 2, "name is ''"),
        (changed("made-up", "\0"), 2, "character U+0000 is not allowed"),
        (changed("made-up", "éöü\0"), 2, "character U+0000 is not allowed"),
        (changed("made-up", '"a\\e[31mb"'), 2, "'a\\x1b[31mb' has characters that do not print"),
        (changed("made-up", '"a\\nb"'), 2, "'a\\nb' has characters that do not print"),
        (changed("space: 12", '"spa\\tce": 12'), 4, "'spa\\tce' has characters that do not"),
        (changed("hidden: 48", f"? {'x' * 500}\n: 48"), 5, "unknown key 'xxxxxxxx"),
        (changed("space: 12", "space: 0"), 4, "axes.space is 0"),
        (changed("mlp: 4", "mlp: four"), 12, "block.3.mlp is 'four'"),
        (changed("mlp: 4", "mlp: .nan"), 12, "block.3.mlp is nan: not a number"),
        (changed("mlp: 4", "mlp: 1.0e+308"), 12, "block.3.mlp is 1e+308"),
        (changed("mlp: 4", "mpl: 4"), 12, "Did you mean 'mlp'?"),
        (changed("mlp: 4", "{}"), 12, "one of attention, cross_attention, mlp"),
        (changed("- mlp: 4", "- mlp"), 12, "block.3 is not a sublayer: 'mlp'. Write '- mlp: 4'"),
        (
            changed("mlp: 4", "conv: 3"),
            12,
            "block.3 is not a sublayer: {'conv': 3}. Each is one of attention, cross_attention, "
            "mlp, as in '- attention: time'",
        ),
        (changed("mlp: 4", "mlp: 0.01"), 12, "leaves no columns of 48"),
        (changed("attention: time", "attention: tiem"), 10, "Did you mean 'time'?"),
        (changed("attention: time", "attention: 'time,space'"), 10, "write [time, space]"),
        (changed("attention: time", "attention: [time, time]"), 10, "'time' with itself"),
        (changed("- attention: time", "- {attention: time, causal: 'yes'}"), 10, "true or false"),
        (
            changed("- attention: time", "- attention: time\n    causal: true\n    projection: 3"),
            12,
            "cannot have both causal and projection",
        ),
        (changed("attention: 9", "attention: 9\n    heads: 5"), 12, "hidden that fits: 30, 60"),
        (changed("hidden: 48", "hidden: 50"), 6, "hidden that fits: 48, 54"),
        (changed("hidden: 48", "hidden: 48\nkv_heads: 4"), 6, "kv_heads that fit: 1, 2, 3, 6"),
        (changed("batch: 2", "positions: {width: rotary}"), 14, "unknown axis 'width'; the axes"),
        (
            changed("hidden: 48", "hidden: 30\npositions: rotary"),
            6,
            "a head of 5 numbers cannot; heads that work: 1, 3, 5, 15",
        ),
        (
            changed("modulation: per_sample", "modulation: per_time")
            .replace("time: 8", "t: 8")
            .replace("attention: time", "attention: t"),
            13,
            "needs an axis named time",
        ),
        (documents("[5, 4]"), 11, "have 9 positions together and do not fill the 8 of time; with"),
        (documents("[5, 4]"), 11, "a last one of 3 they would"),
        (documents("[9, 4]"), 11, "documents have 13 positions together and do not fill the 8 of"),
        (documents("[5, 0, 3]"), 11, "a document of 0 positions: each has 1 or more"),
        (documents("[5, 3.0]"), 11, "a document of 3.0 positions: each has 1 or more"),
        (documents("[]"), 11, "documents is []: write their lengths, as in [4000, 3000, 1192], or"),
        (documents("two"), 11, "documents is 'two': write their lengths"),
        (documents("{mean: 9}"), 11, "of mean 9 are longer than the 8 positions of time; use 1 to"),
        (documents("{mean: 0}"), 11, "documents of mean 0: write 1 or more positions"),
        (documents("{mean: 4, seed: -1}"), 11, "documents of seed -1: write a whole number"),
        (documents("{mena: 4}"), 11, "documents has mena: write their lengths, as in"),
        (
            documents("[5, 3]").replace("attention: time", "attention: [time, space]"),
            11,
            "documents lie along one axis, not time, space; name one",
        ),
        (
            documents("[5, 3]\n    projection: 3"),
            11,
            "one attention cannot have both projection and documents",
        ),
        (
            documents("[5, 3]\n  - {attention: time, documents: [4, 4]}"),
            11,
            "documents along time differ; one axis has one packing, the same everywhere",
        ),
        (boxes("window: [2]"), 9, "window [2] needs a number for each of time, space"),
        (
            boxes("window: [2, 4], shift: [1]"),
            9,
            "shift [1] needs a number for each of time, space",
        ),
        (boxes("window: [2, 4], shift: [2, 0]"), 9, "shift of 2 along time is not below its win"),
        (boxes("window: [2, 40]"), 9, "a window of 40 is longer than the 12 of space; use at most"),
        (boxes("window: [2, 0]"), 9, "window is [2, 0]: write the keys that a position sees"),
        (boxes("window: two"), 9, "window is 'two': write the keys that a position sees"),
        (boxes("window: [2, 4], shift: 1"), 9, "shift is 1: write where the first box begins"),
        (boxes("window: [2, 4], wraps: lat"), 9, "wraps names 'lat', and the attention has time"),
        (boxes("window: [2, 4], wraps: 3"), 9, "wraps is 3: name an axis, or several as in"),
        (boxes("window: 4, shift: [1, 1]"), 9, "window 4 goes along one axis, not time, space"),
        (boxes("window: 4, shift: [1]", "space"), 9, "shift moves boxes along several axes; write"),
        (boxes("window: [2, 4], causal: true"), 9, "boxes of window [2, 4] go without causal"),
        (boxes("window: [2, 4], sinks: true"), 9, "boxes of window [2, 4] go without sinks"),
        (boxes("window: [4], documents: [12]", "space"), 9, "[4] go without documents; leave out"),
        (boxes("window: [4, 2]", "[space, time]"), 9, "as in the tensor; write [time, space]"),
        (changed("{time: 8, space: 12}", "250"), 4, "axes is 250: write names with their lengths"),
        (changed("{time: 8, space: 12}", "{}"), 4, "axes is {}: write names with their lengths"),
        (
            VALID.split("block:", maxsplit=1)[0] + "block: []\n",
            8,
            "block is []: write a list of sublayers, as in",
        ),
        (
            VALID.split("block:", maxsplit=1)[0] + "block:\n",
            8,
            "block is None: write a list of sublayers, as in",
        ),
        (changed("depth: 2", "layers: 2"), 7, "unknown key 'layers'. Did you mean 'depth'?"),
        (changed("hidden: 48", "d_model: 48"), 5, "unknown key 'd_model'. Did you mean 'hidden'?"),
        (changed("heads: 6", "num_heads: 6"), 6, "unknown key 'num_heads'. Did you mean 'heads'?"),
        ("name: a\nworkloads: dsp-3b\ngpus: 2\n", 1, "this is a sweep; use 'spbench run --sweep'"),
        (changed("  - mlp: 4", "    mlp: 4"), 12, "give mlp a '- ' of its own"),
        (changed("  - mlp: 4", "    ratio: 4"), 12, "unknown key 'ratio'"),
        (changed("attention: time", "attention: width"), 10, "the axes are time, space"),
        (changed("source: ", "? [a, b]\n: "), 3, "is not a word"),
        (changed("source: ", "5: "), 3, "key 5 is not a word"),
        (changed("batch: 2", "---\nname: x"), 14, "another document"),
        (changed("batch: 2", "<<: {batch: 2}"), 14, "not YAML"),
        ("a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n", 2, "aliases (*a) are not allowed"),
        ("[" * 90_000, 1, "nested more than 20 deep"),
        ("name: [", 1, "not YAML"),
    ],
)
def test_a_mistake_is_said_with_file_and_line(
    tmp_path: Path, text: str, line: int, reason: str
) -> None:
    """The message starts with file:line of the offending key and says what is wrong with it."""
    path = written(tmp_path, text.encode())
    message = refused(path)
    assert message.startswith(f"{path}:{line}: "), message
    assert reason in message
    assert len(message) < len(str(path)) + 400


def test_a_file_that_is_not_utf8_names_the_line(tmp_path: Path, golden: Golden) -> None:
    """Latin-1 in the third line is reported with that line."""
    path = written(tmp_path, changed("a test", "Käse").encode("latin-1"))
    golden(refused(path))


def test_paths_without_a_workload(tmp_path: Path, golden: Golden) -> None:
    """A folder, a missing file, an impossible name and an endless file are errors with the path."""
    golden(refused(tmp_path))
    golden(refused(Path("no\0.yaml")), "second")
    golden(refused(Path("no\ud800.yaml")), "third")
    golden(refused(tmp_path / "no.yaml"), "fourth")
    (tmp_path / "my-model.yaml").touch()
    said = f"{tmp_path}/my-modle.yaml: No such file or directory. Did you mean 'my-model.yaml'?"
    assert refused(tmp_path / "my-modle.yaml") == said
    endless = Path("/dev/zero")
    assert refused(endless).startswith(f"{endless}:1: too large")


def test_a_huge_file_is_not_parsed(tmp_path: Path, golden: Golden) -> None:
    """One byte more than the limit is refused before any parsing."""
    path = written(tmp_path, b"#" * (MAX_BYTES + 1))
    golden(refused(path))
    assert load_file(written(tmp_path, VALID.encode() + b"#" * 10_000)).name == "made-up"


def test_messages_are_short(tmp_path: Path) -> None:
    """A value of any length is cut, not printed whole."""
    message = refused(written(tmp_path, changed("made-up", f"[{'x, ' * 5000}x]").encode()))
    assert len(message) < 300


FRAGMENTS = [
    *("&a ", "*a", "? ", "- ", "[", "{", "}", "\t", "\r", ">\n", "%", "'", '"', "<<: ", "=", "~"),
    *("!!int ", "!!float ", "!!binary ", "!!set ", "!!bool ", "!!timestamp ", "!!null ", "!a "),
    *(".inf", "-.inf", ".nan", "0x", "1:30", "2001-01-01", "-1", "0", "1e9", "1.0e+300", "yes"),
    "9" * 20,
]


@st.composite
def damages(draw: st.DrawFn) -> bytes:
    """The valid file with up to four stretches cut out, doubled, or replaced by something."""
    content = VALID.encode()
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(content)))
        end = min(len(content), start + draw(st.integers(0, 40)))
        put = draw(
            st.one_of(
                st.just(b""),
                st.just(content[start:end] * 2),
                st.binary(max_size=6),
                st.text(max_size=6).map(lambda text: text.encode(errors="replace")),
                st.sampled_from(FRAGMENTS).map(str.encode),
            )
        )
        content = content[:start] + put + content[end:]
    return content


@examples(300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(damages())
def test_a_damaged_file_raises_nothing_else(tmp_path: Path, content: bytes) -> None:
    """A damaged file gives a workload, or a WorkloadError that begins with file and line."""
    path = written(tmp_path, content)
    try:
        loaded = load_file(path)
    except WorkloadError as error:
        assert re.match(re.escape(str(path)) + r":\d+: \S", str(error)), str(error)
    else:
        assert Workload.model_validate(loaded.model_dump(by_alias=True)) == loaded


BASE = load_text(VALID, "text")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ([], {}),
        (["depth=5"], {"depth": 5}),
        ([" depth = 5"], {"depth": 5}),
        (["depth=4", "depth=5"], {"depth": 5}),
        (["axes={time: 4, space: 8}", "axes.time=2"], {"axes": {"time": 2, "space": 8}}),
        (["dtype=bfloat16", "batch=3"], {"dtype": "bfloat16", "batch": 3}),
        (["axes.time=17"], {"axes": {"time": 17, "space": 12}}),
        (["axes={time: 3, space: 4, rooms: 5}"], {"axes": {"time": 3, "space": 4, "rooms": 5}}),
        (
            ["block=[{attention: time}, {mlp: 4}]"],
            {"block": (Attention(axes=("time",)), Mlp(ratio=4))},
        ),
        (["source=a=b"], {"source": "a=b"}),
        (["positions.space=learned"], {"positions": {"time": "none", "space": "learned"}}),
        (
            ["positions=rotary", "positions.space=learned"],
            {"positions": {"time": "rotary", "space": "learned"}},
        ),
        (
            ["positions={time: rotary}", "positions.space=learned"],
            {"positions": {"time": "rotary", "space": "learned"}},
        ),
    ],
)
def test_settings_replace_fields(settings: list[str], expected: dict[str, object]) -> None:
    """Values are read as YAML; a dot reaches one axis; the rest stays."""
    made = with_settings(BASE, settings)
    assert made == BASE.model_copy(update=expected)


def test_numbers_that_are_read_in_one_way() -> None:
    """Zero, separators and hexadecimal digits are what they look like; words may be quoted."""
    texts = {"0": 0, "00": 0, "1_000": 1000, "0x10": 16, "0.5": 0.5, "-3": -3, "'010'": "010"}
    assert {text: parse(text, "here").value for text in texts} == texts


@pytest.mark.parametrize(
    "settings",
    [
        ["depth=4", "depth=5"],
        ["depth=4", "heads=4", " depth =5"],
        ["axes.time=2", "axes={time: 4}"],
    ],
)
def test_a_setting_that_would_undo_another_is_refused(settings: list[str], golden: Golden) -> None:
    """The last would count, and nothing would say that the first does not; twice the same, and a
    part behind the whole, undo nothing."""
    with pytest.raises(WorkloadError) as refused:
        refuse_undone(overrides_of(settings))
    golden(refused.value)
    refuse_undone(overrides_of(["depth=4", "depth=4", "axes={time: 4}", "axes.time=2"]))


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("depth", "write key=value, as in --set depth=4"),
        ("dpeth=4", "unknown key 'dpeth'. Did you mean 'depth'?"),
        ("axes.tiem=4", "there is no axis 'tiem'. Did you mean 'time'?"),
        ("time=4", "unknown key 'time'. Did you mean 'axes.time'?"),
        ("positions.room=learned", "there is no axis 'room'. Known: time, space"),
        ("axes.time.x=4", "'axes' has no parts"),
        ("hidden.x=4", "'hidden' has no parts; write hidden=value"),
        ("axes.time=0", "axes.time is 0"),
        ("axes.time=many", "axes.time is 'many'"),
        ("heads=5", "hidden 48 is not a multiple of heads 5; heads that fit: 1, 2, 3, 4, 6"),
        ("heads=", "heads is None"),
        ("heads=1e1", "heads is '1e1'"),
        ("axes.time=010", "010 is 8 in YAML 1.1 and 10 in YAML 1.2; write 8 or 10, or put it in"),
        ("depth=01", "01 begins with 0, as octal numbers do in YAML 1.1; write 1, or put it in"),
        ("axes.time=0_17", "0_17 is 15 in YAML 1.1 and 17 in YAML 1.2; write 15 or 17"),
        ("axes.time=1:30", "1:30 is 90 in YAML 1.1, which counts it in sixties; write 90, or put"),
        ("axes={time: 1:30:00, space: 8}", "1:30:00 is 5400 in YAML 1.1, which counts it in"),
        ("heads=99999999999999999999", "too large a number"),
        ("depth=2000000000", "depth is 2000000000: input should be less than or equal to 1000"),
        (f"axes={{{', '.join(f'a{i}: 2' for i in range(40))}}}", "40 axes; at most 8 are planned"),
        ("axes={time: 2147483647, space: 2147483647}", "numbers, and a tensor has at most 1.2e+18"),
        ("hidden=999999996", "the largest weight: 8e+18 numbers, and a tensor has at most 1.2e+18"),
        (f"block=[{', '.join(['{mlp: 4}'] * 5001)}]", "5001 sublayers x depth 2 are 10002, and at"),
        ("dtype=float8", "it may be 'float32', 'float64', 'bfloat16' or 'float16'"),
        ("layers=4", "unknown key 'layers'. Did you mean 'depth'?"),
        ("dtype=bf16", "'bfloat16' or 'float16'. Did you mean 'bfloat16'?"),
        ("dtype=half", "Did you mean 'float16'?"),
        ("optimizer=adam", "Did you mean 'adamw'?"),
        ("mode=bf16", "it may be 'train' or 'forward'"),
        ("block=[{attention: time}, {mlp: 768}]", "for 768 columns of hidden 48 write mlp: 16"),
        (
            "block=[{mlp: 14336}]",
            "looks like a width; for 14336 columns of hidden 48 write mlp: 298",
        ),
        ("block=[{mlp: 65}]", "at most 64"),
        ("block=[{atention: time}]", "Did you mean 'attention'?"),
        ("block=[", "not YAML"),
        ("name=\udcff", "not YAML: character U+DCFF is not allowed"),
        ("block=[*a]", "aliases"),
    ],
)
def test_a_mistaken_setting_is_named(setting: str, message: str) -> None:
    """The message repeats the setting as it was given, and says what would work."""
    with pytest.raises(WorkloadError) as caught:
        with_settings(BASE, [setting])
    assert str(caught.value).startswith(f"--set {setting}:")
    assert message in str(caught.value)


def test_the_first_of_two_settings_is_not_blamed_on_the_second(golden: Golden) -> None:
    """An error of fields that do not fit together shows every setting."""
    with pytest.raises(WorkloadError) as refused:
        with_settings(BASE, ["depth=0", "batch=2"])
    golden(refused.value)


def test_the_nearest_name_or_all_of_them(golden: Golden) -> None:
    """A typing error gets a suggestion, any other word the whole list."""
    golden(suggestion("heds", ["heads", "depth"]))
    golden(suggestion("zzz", ["heads", "depth"]), "second")
    golden(suggestion("layers", ["axes", "depth"]), "third")
    golden(suggestion("layers", ["axes", "name"]), "fourth")
    golden(suggestion("bert", ["gpt-7b", "bert-large"]), "fifth")
    berts = ["bert-base-small", "bert-large", "gpt-7b", "bert-base", "bert-xs"]
    golden(suggestion("bert", berts), "sixth")
