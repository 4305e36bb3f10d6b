"""Options that are given twice: what takes one value is refused with two, in every command."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from spbench.errors import Failure

ONE_OF = {"--workload": "a run has one workload, and --sweep FILE several in one run"}
"""What would work where an option that takes one value is given several, by its flag."""


def refuse_repeats(command: click.Command, ctx: click.Context, words: Sequence[str]) -> None:
    """Raises Failure for two values of an option that takes one: the last would count."""
    lenient = copy.deepcopy(command)
    options = [option for option in lenient.params if isinstance(option, click.Option)]
    single = [option for option in options if not (option.multiple or option.is_flag)]
    for option in single:
        option.multiple = True
    with contextlib.suppress(click.UsageError):  # the command itself says so
        given, _, _ = lenient.make_parser(ctx).parse_args(list(words))
        for option in single:
            values = dict.fromkeys(given.get(option.name, []))
            if len(values) > 1:
                flag, takes_list = max(option.opts, key=len), "[," in (option.metavar or "")
                list_ = f"give them with commas, {flag} {','.join(values)}" if takes_list else ""
                works = list_ or ONE_OF.get(flag, "give the one that counts")
                raise Failure(f"{flag} is given twice, as {' and '.join(values)}; {works}")


# A command of spbench: no option twice, and a help with options in groups, and examples.

OTHER = "Other options"
GROUPS = {
    "What": (
        *("strategies", "workload", "workloads", "gpus", "ranks", "meshes", "settings", "dtype"),
        "fixed",
        *("sweep", "small", "skip_invalid", "cluster", "baseline", "base_ref", "lengths"),
        *("metrics", "reference", "against"),
    ),
    "How it is measured": (
        *("launches", "quick", "share", "execution", "graph", "device", "seed"),
        *("peak_tflops", "timeout", "hang_after", "max_time", "measure", "links"),
    ),
    "What has to fit": ("memory", "reserve", "axes"),
    "What the cluster does": ("compiled", "kernel"),
    "What is drawn": ("kinds", "metric", "x", "facet", "formats"),
    "What counts": ("margin", "max_slowdown", "max_memory", "strict", "allow_mismatch"),
    "Logs of nccl-tests": ("logs", "onto", "level"),
    "Several machines": ("nnodes", "node_rank", "rdzv_endpoint", "join_timeout"),
    "Output": (
        *("out", "fresh", "adds", "verbose", "dry_run", "markdown_to", "junit_to", "baselines"),
        *("page", "as_markdown", "as_csv", "as_json", "_click_default_help"),
    ),
}
"""Parameters by the heading that they stand under; all others stand under ``OTHER``."""
SHORTEST = 8
"""A page with fewer options than this needs no headings."""
EXAMPLES = {
    "run": (
        "run",
        "run -s dsp,ulysses -g 2,4,8 -w dsp-720m --launches 5",
        "run -s all -w my-model.yaml --set depth=4 --quick",
        "run --sweep ci-smoke --out results/today",
    ),
    "resume": ("resume", "resume results/today --max-time 1h"),
    "compare": ("compare", "compare baseline:main results/after --markdown"),
    "plot": ("plot", "plot results/today -s dsp,ulysses -g 8"),
    "report": ("report", "report results/today --out today.html"),
    "history": ("history -s dsp -g 2", "history -w dsp-720m --out pictures"),
    "check": (
        "check --base-ref origin/main -s dsp -g 2",
        "check --base-ref HEAD~1 --sweep ci-smoke --metrics memory,volume",
        "check --baseline main",
        "check --baseline main results/after --markdown check.md",
    ),
    "verify": ("verify", "verify -s dsp -g 2,3 -w my-model.yaml"),
    "show": ("show dsp-720m -s dsp,ulysses", "show my-model.yaml -g 2,8"),
    "init": (
        "init",
        "init models/video-2b.yaml",
        "init my-model --from config.json",
        "init --cluster mine --like hgx-h100 --from nccl-logs/*",
    ),
    "list": ("list workloads", "list clusters", "list runs --json"),
    "doctor": ("doctor", "doctor --device cpu"),
    "recommend": (
        "recommend flux.1-dev -c l20-pcie -g 8 --set mode=forward",
        "recommend my-model.yaml -c results/clusters/here.yaml -g 4",
    ),
    "project": ("project dsp-720m --cluster hgx-h100 -g 8,16",),
    "capacity": ("capacity dsp-720m -s dsp,ulysses -g 8 --memory 80GB",),
    "calibrate": ("calibrate here -g 1,2,4", "calibrate mine -g 1 --onto hgx-h200"),
}
"""Commands to begin with, each behind ``spbench``."""


class HelpPage(click.Command):
    """A command that refuses an option given twice, and whose help has its options in groups, and
    examples at its end."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing:
            refuse_repeats(self, ctx, args)
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        known = {name: group for group, names in GROUPS.items() for name in names}
        shown: dict[str, list[tuple[str, str]]] = {group: [] for group in (*GROUPS, OTHER)}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None and isinstance(param, click.Option):
                shown[known.get(param.name or "", OTHER)].append(record)
        groups = {group: lines for group, lines in shown.items() if lines}
        if sum(map(len, groups.values())) < SHORTEST:
            groups = {"Options": [line for lines in groups.values() for line in lines]}
        for group, lines in groups.items():
            with formatter.section(group):
                formatter.write_dl(lines)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_epilog(ctx, formatter)
        above = ctx.parent if ctx.parent and ctx.parent.parent else None
        name = f"{above.info_name} {self.name}" if above else self.name or ""
        if examples := EXAMPLES.get(name):
            with formatter.section("Examples"):
                for example in examples:
                    formatter.write(f"{'':{formatter.current_indent}}spbench {example}\n")


# Completion of strategies, workloads, sweeps, clusters and runs in a shell.
#
# Whoever presses Tab waits: while a value of an option is completed, no module of a command is
# loaded, which would take longer than all else.

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def strategies(_: click.Context, __: click.Parameter, text: str) -> list[CompletionItem]:
    """Strategies, each also behind a comma."""
    from spbench.strategies.registry import SUMMARIES, named

    return _behind_commas(text, ["all", *named(), "vendors"], SUMMARIES)


def catalogue(kind: str) -> Complete:
    """Names of the catalogue, or the user's files."""

    def complete(_: click.Context, __: click.Parameter, text: str) -> list[CompletionItem]:
        from spbench.workload.config_names import names

        return _behind_commas(text, names(kind)) or _files(text)

    return complete


workloads, sweeps, clusters = map(catalogue, ("workloads", "sweeps", "clusters"))


def runs(_: click.Context, __: click.Parameter, text: str) -> list[CompletionItem]:
    """Runs under results/, with and without that folder's name, or the user's files."""
    known = sorted(path.parent for path in Path("results").glob("*/runs.csv"))
    shown = [str(path) if text.startswith("results/") else path.name for path in known]
    return [CompletionItem(name) for name in shown if name.startswith(text)] or _files(text)


VALUES: dict[str, Complete] = {
    **dict.fromkeys(("-s", "--strategy"), strategies),
    **dict.fromkeys(("-w", "--workload"), workloads),
    "--sweep": sweeps,
    **dict.fromkeys(("-c", "--cluster"), clusters),
}
"""What completes the value of an option, by its flag in every command."""


def stand_in(flag: str) -> click.Command | None:
    """A command with this flag alone, to complete its value; None where no value is known."""
    if flag not in VALUES:
        return None
    option = click.Option([flag, "value"], multiple=True, shell_complete=VALUES[flag])
    lenient = {"ignore_unknown_options": True, "allow_extra_args": True}
    return click.Command("any", params=[option], context_settings=lenient)


def _behind_commas(
    text: str, names: Iterable[str], helps: dict[str, str] | None = None
) -> list[CompletionItem]:
    """The names that begin like what stands behind the last comma, with what stands before it."""
    before, comma, begun = text.rpartition(",")
    return [
        CompletionItem(f"{before}{comma}{name}", help=(helps or {}).get(name))
        for name in names
        if name.startswith(begun)
    ]


def _files(text: str) -> list[CompletionItem]:
    """Leaves it to the shell to complete files."""
    return [CompletionItem(text, type="file")]
