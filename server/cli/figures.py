"""The command that writes a chart of a page as a file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

from server.cli.connection import connect
from server.cli.options import DATA_DIR

PIXELS = click.IntRange(100, 4000)
OF_ONE = ("layer", "eigenvalues", "from_step", "to_step", "y")
OF_SEVERAL = ("group_by", "show", "x", "y", "from_step", "to_step")


class Subject(click.ParamType[tuple[str, Any]]):
    """What a chart is of, as (kind, number or numbers)."""

    name = "subject"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, Any]:
        if re.fullmatch(r"\d{1,18}", value):
            return "run", int(value)
        if re.fullmatch(r"\d{1,18}(,\d{1,18})+", value):
            return "compare", {"runs": [int(part) for part in value.split(",")]}
        if found := re.fullmatch(r"sweep:(\d{1,18})", value):
            return "sweep", int(found[1])
        if found := re.fullmatch(r"theory(?::(\d{1,18}))?", value):
            return "theory", {"run": int(found[1])} if found[1] else {}
        self.fail(
            f"{value!r} is none of: a run (7), runs (7,8,9), sweep:3, theory, theory:7 (with the weights of run 7)", param, ctx
        )


@click.command()
@click.argument("of", type=Subject(), metavar="OF")
@click.argument("chart")
@click.option("--format", "format_", type=click.Choice(["svg", "png", "html"]), default="svg", show_default=True)
@click.option("--width", type=PIXELS, default=900, show_default=True, help="Pixels.")
@click.option("--height", type=PIXELS, default=420, show_default=True, help="Pixels.")
@click.option("--scale", type=click.FloatRange(0.5, 8), default=2.0, show_default=True, help="Of a png: pixels per pixel.")
@click.option("--layer", type=click.IntRange(0), help="Of a run. Default: the first.")
@click.option("--eigenvalues", help="Of a run: those drawn as lines, for example 0,3,7. Default: the largest ratios.")
@click.option("--from-step", type=click.IntRange(0), help="Of runs.")
@click.option("--to-step", type=click.IntRange(0), help="Of a run.")
@click.option("--group-by", help="Of several runs: paths separated by commas.")
@click.option("--show", type=click.Choice(["runs", "groups"]), help="Of several runs: lines, or bands of groups.")
@click.option("--x", type=click.Choice(["step", "tokens", "seconds"]), help="Of several runs.")
@click.option("--y", type=click.Choice(["log", "linear"]), help="The vertical axis. Default: the chart's own.")
@click.option("--out", "-o", type=click.Path(path_type=Path), help="Default: OF-CHART.FORMAT.")
@DATA_DIR
def figure(
    of: tuple[str, Any], chart: str, format_: str, width: int, height: int, scale: float, out: Path | None, data_dir: Path | None,
    **view: Any,
) -> None:  # fmt: skip
    """Write one chart as SVG, PNG or HTML, as its page shows it.

    OF is a run (7), several runs (7,8,9), a sweep (sweep:3) or theory (theory:7 with the weights of run 7). SVG and PNG need
    Playwright and a Chromium.
    """
    from stablessm_core.client.drawing import BrowserMissing

    kind, which = of
    if kind == "sweep" and not chart.startswith("sweep"):
        kind, which = "compare", {"sweep": which}
    size: dict[str, Any] = {"width": width, "height": height, "scale": scale if format_ == "png" else 1.0}
    asked = _asked(kind, {name: value for name, value in view.items() if value is not None})
    with connect(data_dir) as client:
        try:
            if kind == "run":
                content = client.figure_file(which, chart, format_, **size, **asked)
            elif kind == "compare":
                content = client.compare_figure_file(chart, format_, **which, **size, **asked)
            elif kind == "sweep":
                content = client.sweep_figure_file(which, chart, format_, **size)
            else:
                content = client.theory_figure_file(chart, format_, **which, **size, **asked)
        except BrowserMissing as missing:
            raise click.ClickException(str(missing)) from None
    path = out or Path(f"{_named(kind, which)}-{chart}.{format_}")
    path.write_bytes(content)
    click.echo(f"{path}  {len(content):,} bytes")


def _asked(kind: str, view: dict[str, Any]) -> dict[str, Any]:
    """The options that such a chart has. Raises for others: they would be of no effect."""
    allowed = {"run": OF_ONE, "compare": OF_SEVERAL, "sweep": (), "theory": ("layer",)}[kind]
    for name in view:
        if name not in allowed:
            options = ", ".join("--" + one.replace("_", "-") for one in allowed) or "none of its kind"
            raise click.UsageError(f"--{name.replace('_', '-')} says nothing of such a chart; allowed are {options}")
    if kind == "compare":
        return {{"from_step": "from", "to_step": "to"}.get(name, name): value for name, value in view.items()}
    if "eigenvalues" in view:
        view["eigenvalues"] = [int(part) for part in view["eigenvalues"].split(",") if part.strip().isdigit()]
    return view


def _named(kind: str, which: Any) -> str:
    if kind in ("run", "sweep"):
        return f"{kind}-{which}"
    number = which.get("sweep") or which.get("run")
    return f"{kind}-{number}" if number else kind
