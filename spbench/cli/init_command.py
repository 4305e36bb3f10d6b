"""``spbench init``: a workload to fill in."""

from pathlib import Path

import click

from spbench.cli.help_page import HelpPage
from spbench.errors import Failure, writing
from spbench.text import quoted
from spbench.workload.catalogue import load_text
from spbench.workload.config_names import configs

NAME = "my-model"
"""Name of the workload in the template, and the default."""


@click.command("init", cls=HelpPage)
@click.argument("name", default=NAME)
def command(name: str) -> None:
    """Write NAME.yaml, a workload with a comment at each key, to fill in.

    It can be run as it is. A file that exists is never overwritten.
    """
    file = Path(name if name.endswith((".yaml", ".yml")) else f"{name}.yaml")
    text = (configs() / "template.yaml").read_text(encoding="utf-8")
    text = text.replace(f"{NAME}.yaml", str(file)).replace(f"name: {NAME}", f"name: {file.stem}")
    load_text(text, str(file))  # a name that no workload may have is refused
    with writing(file):
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("x", encoding="utf-8") as opened:
                opened.write(text)
        except FileExistsError:
            raise Failure(
                f"{file} exists; give another name, as in 'spbench init my-model-2'"
            ) from None
    click.echo(f"{file} is written; look at it with: {quoted('spbench', 'show', file, '-g', 2)}")
