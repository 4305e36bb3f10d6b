"""A command of spbench: no option twice, and a help with options in groups, and examples."""

import click

from spbench.cli.repeated_options import refuse_repeats

OTHER = "Other options"
GROUPS = {
    "What": (
        *("strategies", "workload", "workloads", "gpus", "ranks", "meshes", "settings", "dtype"),
        *("sweep", "small", "skip_invalid", "cluster", "baseline", "base_ref", "lengths"),
        *("metrics", "reference", "against"),
    ),
    "How it is measured": (
        *("launches", "quick", "share", "device", "seed", "peak_tflops", "timeout"),
        *("hang_after", "max_time", "measure", "links"),
    ),
    "What has to fit": ("memory", "reserve", "axes"),
    "What the cluster does": ("link_rate", "link_rates", "compiled", "kernel"),
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
    "compare": ("compare", "compare results/before results/after", "compare baseline:main after"),
    "evidence": ("evidence results/after results/before", "evidence results/after"),
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
    "init": ("init", "init models/video-2b.yaml"),
    "list": ("list workloads", "list clusters", "list runs --json"),
    "doctor": ("doctor", "doctor --device cpu"),
    "recommend": (
        "recommend flux.1-dev -c l20-pcie -g 8 --set mode=forward",
        "recommend my-model.yaml -c results/clusters/here.yaml -g 4",
    ),
    "project": ("project dsp-720m --cluster hgx-h100 -g 8,16", "project --against"),
    "capacity": ("capacity dsp-720m -s dsp,ulysses -g 8 --memory 80GB",),
    "calibrate": (
        "calibrate here -g 1,2,4",
        "calibrate mine -g 1 --onto hgx-h200",
        "calibrate mine --onto hgx-h100 --import all_reduce.log",
    ),
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
