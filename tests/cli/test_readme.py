"""What the README and the pages show is true: commands run, workloads load, pictures are drawn."""

from __future__ import annotations

import difflib
import re
import shlex
from pathlib import Path

import click
import pytest
import yaml
from helpers.command_line import record, spbench
from helpers.examples import ALL
from helpers.spbench_process import SMALL

from spbench.cli.main import command_of
from spbench.results.store import Store
from spbench.strategies.registry import BUILT_IN, expand_names
from spbench.workload.block import KINDS, Frozen, Stream
from spbench.workload.catalogue import find, load_text, with_settings
from spbench.workload.sweeps import Include, SweepFile, load_sweep
from spbench.workload.workload import Workload

pytestmark = pytest.mark.usefixtures("work_is_made_up")

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
DOCS = Path(__file__).parents[2] / "docs"
SWEEPS_PAGE = (DOCS / "sweeps.md").read_text(encoding="utf-8")
WORKLOADS_PAGE = (DOCS / "workloads.md").read_text(encoding="utf-8")
STRATEGIES_PAGE = (DOCS / "strategies.md").read_text(encoding="utf-8")
FIRST_STEPS = "".join(
    (DOCS / f"{page}.md").read_text(encoding="utf-8") for page in ("getting-started", "choosing")
)
COMMANDS = [
    line.removeprefix("$ ").split("#")[0].strip()
    for block in re.findall(r"```console\n(.*?)```", README + FIRST_STEPS, re.DOTALL)
    for line in block.splitlines()
]

(MODEL,) = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
(FIRST_MODEL,) = re.findall(r"```yaml\n(.*?)```", FIRST_STEPS, re.DOTALL)
PICTURES = re.findall(
    r"```text\n\$ (spbench show [^\n]*)\n(.*?)```", README + STRATEGIES_PAGE, re.DOTALL
)


CI_PAGE = (DOCS / "ci.md").read_text(encoding="utf-8")
CHECKS = [
    line.removeprefix("$ ").split("#")[0].strip()
    for block in re.findall(r"```console\n(.*?)```", README + CI_PAGE, re.DOTALL)
    for line in block.splitlines()
    if line.startswith(("$ spbench check", "$ spbench baseline"))
]
WORKFLOWS = [
    *re.findall(r"```yaml\n# \.github/workflows/[a-z]+\.yml\n(.*?)```", CI_PAGE, re.DOTALL),
    (DOCS.parent / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"),
]


LONG = ("doctor", "calibrate", "recommend", "capacity")
"""Commands of the README that take minutes where many tests run: by day only their flags are tried,
since each has tests of its own on a small workload."""


@pytest.mark.parametrize("command", CHECKS)
def test_checks_of_the_docs_are_well_formed(command: str) -> None:
    """Every flag that they give is one of the command's, and its value is one that it takes."""
    _, name, *words = shlex.split(command)
    found = command_of(name)
    if isinstance(found, click.Group):
        found = found.commands[words.pop(0)]
    assert found.make_context(name, words).params


@pytest.mark.parametrize("text", WORKFLOWS)
def test_workflows_are_well_formed(text: str) -> None:
    """They are YAML, and the check that each runs is one that the command takes."""
    steps = [step for job in yaml.safe_load(text)["jobs"].values() for step in job["steps"]]
    (run,) = (step["run"] for step in steps if "spbench check" in step.get("run", ""))
    words = shlex.split(run.replace("${{ github.base_ref }}", "main"))
    test_checks_of_the_docs_are_well_formed(shlex.join(["spbench", *words[1:]]))


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("spbench run")])
def test_runs_of_the_readme_are_well_formed(command: str, tmp_path: Path) -> None:
    """Each plans its cells on a machine without a GPU; my-model.yaml is the pages' own."""
    (tmp_path / "my-model.yaml").write_text(FIRST_MODEL)
    words = [word for word in shlex.split(command)[1:] if word != "--dry-run"]
    done = spbench(tmp_path, *words, "--dry-run", "--device", "cpu", torch=True)
    assert (done.code, done.err) == (0, "")


@pytest.mark.timeout(1200 if ALL else 300)  # calibrate alone takes minutes
def test_the_other_commands_of_the_readme_run(tmp_path: Path) -> None:
    """Every other command as it is written, with the rows of a run. A short run makes those up and
    leaves out what starts ranks."""
    if ALL:
        assert spbench(tmp_path, "run", "-s", "dsp", "-g", "2", *SMALL, torch=True).code == 0
    else:
        with Store(tmp_path / "results" / "made-up") as store:
            store.append(record("dsp", step_ms=10.0))
    others = {c for c in COMMANDS if not c.startswith(("spbench run", "spbench check"))}
    (tmp_path / "my-model.yaml").write_text(FIRST_MODEL)
    assert len(others) >= 4
    for command in sorted(others):
        words_ = shlex.split(command)[1:]
        if words_[0] in LONG and not ALL:
            test_checks_of_the_docs_are_well_formed(command)
            continue
        more = {"doctor": ["--device", "cpu"]}
        done = spbench(tmp_path, *words_, *more.get(words_[0], []), torch=True)
        assert done.code == 0, (command, done.err)
        assert done.out.strip()


@pytest.mark.parametrize(("command", "shown"), PICTURES, ids=[command for command, _ in PICTURES])
def test_pictures_of_the_readme_are_what_is_drawn(command: str, shown: str) -> None:
    """Each is its command's output, to the letter."""
    done = spbench(Path(__file__).parents[2], *shlex.split(command)[1:], torch=True)
    assert (done.code, done.err) == (0, "")
    assert shown == done.out


def test_every_strategy_has_a_section_with_its_picture() -> None:
    """docs/strategies.md has a heading for each built-in strategy, and below it what it draws."""
    drawn = {name for command, _ in PICTURES for name in command.partition(" -s ")[2].split(",")}
    for name in BUILT_IN:
        assert f"\n## {name}\n" in STRATEGIES_PAGE
        assert name in drawn


def test_the_workloads_of_the_readme_and_of_getting_started_load() -> None:
    """The YAML in each is a valid workload of three axes."""
    for text in (MODEL, FIRST_MODEL):
        assert list(load_text(text, "my-model.yaml").axes) == ["time", "height", "width"]


@pytest.mark.parametrize("text", re.findall(r"```yaml\n(.*?)```", SWEEPS_PAGE, re.DOTALL))
def test_the_sweeps_of_the_docs_load(text: str, tmp_path: Path) -> None:
    """With my-model.yaml beside them; what they include and exclude is in and out."""
    (tmp_path / "my-model.yaml").write_text(MODEL)
    (tmp_path / "my-sweep.yaml").write_text(text)
    sweep = load_sweep(str(tmp_path / "my-sweep.yaml"), expand_names)
    asked = {(one.workload.name, one.workload.batch, one.ranks) for one in sweep.combinations}
    assert ("my-video-model", 2, 4) in asked
    assert ("dsp-720m", 2, 8) in asked
    assert ("dsp-720m", 2, 4) not in asked
    assert {one.workload.checkpointing for one in sweep.combinations} == {"none"}
    assert {(name, ranks) for name, _, ranks in asked if name == "latte-1"} == {("latte-1", 2)}


def test_every_key_of_a_sweep_is_in_the_docs() -> None:
    """docs/sweeps.md shows all in its example, and has a row for each."""
    (text,) = re.findall(r"```yaml\n(.*?)```", SWEEPS_PAGE, re.DOTALL)
    assert set(re.findall(r"^(\w+):", text, re.MULTILINE)) == set(keys_of(SweepFile))
    for key in {*keys_of(SweepFile), *keys_of(Include)}:
        assert f"| `{key}` |" in SWEEPS_PAGE


def test_the_workload_of_the_docs_loads() -> None:
    """docs/workloads.md shows every field of a workload and of a block, and it is valid."""
    blocks = re.findall(r"```yaml\n(.*?)```", WORKLOADS_PAGE, re.DOTALL)
    yaml, stacks, film, llama, protein = blocks
    work, stacked = load_text(yaml, "workloads.md"), load_text(stacks, "workloads.md")
    assert work.model_fields_set == set(type(work).model_fields) - {"stacks", "text", "streams"}
    assert stacked.text and any(each.double for each in stacked.attentions)
    assert stacked.depth_in_words == "20 + 40"
    assert with_settings(stacked, ["stacks.1.depth=4"]).depth_in_words == "20 + 4"
    parts = [*KINDS.values(), Stream]
    assert all(key in WORKLOADS_PAGE for model in parts for key in keys_of(model))
    assert load_text(film, "workloads.md").block == find("ltx-2").block
    one, two = load_text(llama, "workloads.md"), load_text(protein, "workloads.md")
    assert (list(one.axes), one.kv_heads, one.is_causal("sequence")) == (["sequence"], 8, True)
    assert two.pairs == {"residues": 128}


def test_defaults_of_the_docs_are_the_defaults() -> None:
    """docs/workloads.md has a row for each field that need not be given, and names the others."""
    said = dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", WORKLOADS_PAGE, re.MULTILINE))
    words: dict[str, object] = {"streams": {}}
    words |= {
        "kv_heads": None,
        "head_dim": None,
        "v_head_dim": None,
        "source": "",
        "qk_norm": False,
    }
    for name, field in Workload.model_fields.items():
        if field.is_required() or name in ("depth", "block", "stacks"):
            assert name not in said
            assert f"`{name}`" in WORKLOADS_PAGE.partition("The rest has defaults")[0]
        else:
            assert name in said
            default = field.get_default(call_default_factory=True)
            assert str(default) == str(words.get(name, said[name]))


def test_settings_of_the_docs_work() -> None:
    """Every --set that docs/workloads.md shows in full, on a workload of two axes."""
    shown = re.findall(r"--set '?(\w[\w.]*=(?:[^`'\s]+|[^`']+))'?`", WORKLOADS_PAGE)
    assert shown[0] == "KEY=VALUE"
    assert shown[-1] == "stacks.1.depth=4"
    made = with_settings(find("dsp-720m"), shown[1:-1])
    assert (made.depth, made.axes["time"], made.position_of("time")) == (4, 4, "learned")


def keys_of(model: type[Frozen]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]


@pytest.mark.parametrize("form", ["dsp", "ulysses"])
def test_the_diffs_of_own_models(form: str) -> None:
    """docs/own-model.md shows what the parallel example changes: ten lines at most, blank apart."""
    examples = DOCS.parent / "examples"
    plain, parallel = (
        (examples / f"video_transformer{name}.py").read_text().splitlines(keepends=True)
        for name in ("", f"_{form}")
    )
    _, _, *diff = difflib.unified_diff(plain, parallel, n=1)
    shown = re.findall(r"```diff\n(.*?)```", (DOCS / "own-model.md").read_text(), re.DOTALL)
    assert "".join(diff) in shown
    assert sum(line[0] == "+" and len(line.strip()) > 1 for line in diff) <= 10
    assert "spbench" not in "".join(plain)


def test_links_lead_somewhere() -> None:
    """Every relative link of the README and the docs is a file."""
    root = Path(__file__).parents[2]
    for page in [root / "README.md", root / "CONTRIBUTING.md", *root.glob("docs/**/*.md")]:
        prose = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)#:]+)\)", prose):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
