"""The command that writes a chart of a run as a file."""

from __future__ import annotations

from pathlib import Path

import click

from server.cli.connection import connect
from server.cli.options import DATA_DIR, RUN_ID

PIXELS = click.IntRange(100, 4000)


@click.command()
@RUN_ID
@click.argument("chart")
@click.option("--format", "format_", type=click.Choice(["svg", "png", "html"]), default="svg", show_default=True)
@click.option("--width", type=PIXELS, default=900, show_default=True, help="Pixels.")
@click.option("--height", type=PIXELS, default=420, show_default=True, help="Pixels.")
@click.option("--scale", type=click.FloatRange(0.5, 8), default=2.0, show_default=True, help="Of a png: pixels per pixel.")
@click.option("--layer", type=click.IntRange(0), default=0, show_default=True)
@click.option("--eigenvalues", help="Those drawn as lines, for example 0,3,7. Default: the largest ratios.")
@click.option("--from-step", type=click.IntRange(0))
@click.option("--to-step", type=click.IntRange(0))
@click.option("--out", "-o", type=click.Path(path_type=Path), help="Default: run-RUN-CHART.FORMAT.")
@DATA_DIR
def figure(
    run_id: int, chart: str, format_: str, width: int, height: int, scale: float, layer: int, eigenvalues: str | None,
    from_step: int | None, to_step: int | None, out: Path | None, data_dir: Path | None,
) -> None:  # fmt: skip
    """Write one chart of a run as SVG, PNG or HTML, as its page shows it. SVG and PNG need Playwright and a Chromium."""
    from stablessm_core.client.drawing import BrowserMissing

    chosen = None if eigenvalues is None else [int(part) for part in eigenvalues.split(",") if part.strip().isdigit()]
    with connect(data_dir) as client:
        try:
            content = client.figure_file(
                run_id, chart, format_, width=width, height=height, scale=scale if format_ == "png" else 1.0, layer=layer,
                eigenvalues=chosen, from_step=from_step, to_step=to_step,
            )  # fmt: skip
        except BrowserMissing as missing:
            raise click.ClickException(str(missing)) from None
    path = out or Path(f"run-{run_id}-{chart}.{format_}")
    path.write_bytes(content)
    click.echo(f"{path}  {len(content):,} bytes")
