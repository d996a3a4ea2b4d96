"""`stablessm reproduce culprits`: asks for every layer, map and learning rate who killed the run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from server.cli.connection import connect
from server.cli.options import DATA_DIR
from studies import culprits as study
from studies.culprits_figure import stability_svg
from studies.culprits_text import culprits_text
from studies.systems import parse_layers


@click.command()
@click.option("--quick", is_flag=True, help="Fewer learning rates, seeds and steps, which takes minutes on two cores.")
@click.option("--seeds", type=click.IntRange(1, 12), help="Seeds of each cell. Default: 12, or 2 with --quick.")
@click.option("--layers", default="", help="Train only these layers, separated by commas.")
@click.option("--resume", type=click.IntRange(1), metavar="SWEEP", help="Continue an interrupted call: its first sweep.")
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Markdown file to write, with a figure (.svg) beside it. Default: standard output, without the figure.",
)
@DATA_DIR
def culprits(
    quick: bool, seeds: int | None, layers: str, resume: int | None, output: Path | None, data_dir: Path | None
) -> None:  # fmt: skip
    """Train every layer with several maps and rates. For each run that dies, show what killed it: the same step in float64, and
    the run with its recurrence frozen, with another map and at a tenth of its rate."""
    size = study.QUICK if quick else study.FULL
    size = replace(size, seeds=seeds or size.seeds)
    try:
        names = parse_layers(layers)
        with connect(data_dir) as client:
            found = study.reproduce(client, size, names, lambda line: click.echo(line, err=True), resume)
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    except KeyboardInterrupt:
        message = "interrupted; the submitted runs continue, and --resume SWEEP waits for them"
        raise click.ClickException(message) from None
    text = culprits_text(found)
    if output is None:
        click.echo(text)
        return
    if found.points:
        figure = output.with_suffix(".svg")
        figure.write_bytes(stability_svg(found.points))
        text += f"\n![|λ| against the length of the sequence]({figure.name})\n"
    output.write_text(text, encoding="utf-8")
    click.echo(str(output), err=True)
