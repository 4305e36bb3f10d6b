"""Flags of the commands that project to a cluster which is not at hand."""

from __future__ import annotations

import click

from spbench.cli import options

share_option = click.option(
    "--share",
    type=options.PATH,
    metavar="RUN",
    help="A run of 'spbench run --share': what a rank computes is as measured there.",
)
link_rate_option = click.option(
    "--link-rate",
    metavar="RATE",
    help="The cluster with its outermost links at another nominal rate, such as 200Mbit.",
)
