"""`stablessm reproduce culprits`: asks for every layer, map and learning rate who killed the run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from server.cli.connection import connect
from server.cli.options import DATA_DIR
from server.cli.reproduce_paper import check_endings, registered, write_reports
from studies import culprits as study
from studies.culprits_figure import stability_svg
from studies.culprits_report import culprits_report
from studies.culprits_text import culprits_text
from studies.systems import parse_layers


@click.command()
@click.option("--quick", is_flag=True, help="Fewer learning rates, seeds and steps, which takes minutes on two cores.")
@click.option("--seeds", type=click.IntRange(1, 12), help="Seeds of each cell. Default: 12, or 1 with --quick.")
@click.option("--layers", default="", help="Train only these layers, separated by commas.")
@click.option("--resume", type=click.IntRange(1), metavar="SWEEP", help="Continue an interrupted call: its first sweep.")
@click.option(
    "--output",
    "-o",
    multiple=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="File to write: .md with a figure (.svg) beside it, .json, .html or .tex. Can be repeated. Default: standard output.",
)
@DATA_DIR
def culprits(
    quick: bool, seeds: int | None, layers: str, resume: int | None, output: tuple[Path, ...], data_dir: Path | None
) -> None:  # fmt: skip
    """Train every layer with several maps and rates. For each run that dies, show what killed it: the same step in float64, and
    the run with its recurrence frozen, with another map and at a tenth of its rate."""
    check_endings(output)
    registry = registered()
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
    if not output:
        click.echo(culprits_text(found))
    for path in output:
        if path.suffix == ".md":
            _write_markdown(found, path)
        else:
            write_reports(culprits_report(found, registry), registry, (path,))


def _write_markdown(found: study.Findings, path: Path) -> None:
    text = culprits_text(found)
    if found.points:
        figure = path.with_suffix(".svg")
        figure.write_bytes(stability_svg(found.points))
        text += f"\n![|λ| against the length of the sequence]({figure.name})\n"
    path.write_text(text, encoding="utf-8")
    click.echo(str(path), err=True)
