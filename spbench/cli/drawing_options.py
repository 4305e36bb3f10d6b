"""Flags that the commands share which draw a run."""

from __future__ import annotations

import click

from spbench.cli import options

drawing_options = options.together(
    options.filter_options,
    click.option(
        "--page",
        type=click.IntRange(min=1),
        default=1,
        help="Page of a figure of more than 12 panels.",
    ),
    options.baselines_option,
    options.json_option,
)
