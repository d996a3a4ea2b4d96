"""`stablessm figure`: saves a chart as a file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

from server.cli.connection import connect
from server.cli.options import DATA_DIR, Choice, join_values
from server.cli.terminal import file_size
from stablessm_core.client.figure_files import FORMATS
from stablessm_core.spec.suggestions import did_you_mean

PIXELS = click.IntRange(100, 4000)
RUN_OPTIONS = ("layer", "eigenvalues", "from_step", "to_step", "y")
COMPARE_OPTIONS = ("group_by", "show", "x", "y", "from_step", "to_step")


class Subject(click.ParamType[tuple[str, Any]]):
    """The click parameter type for the subject of a chart. A value is the tuple (kind, number or query)."""

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
            f"{value!r} is not one of: a run (7), runs (7,8,9), sweep:3, theory, theory:7 (with the weights of run 7)", param, ctx
        )


@click.command()
@click.argument("of", type=Subject(), metavar="OF")
@click.argument("chart")
@click.option("--format", "format_", type=Choice(list(FORMATS)), help="Default: the ending of the -o file, else pdf.")
@click.option("--size", type=Choice(["column", "page"]), help="Size for a paper: 85 mm or 175 mm wide.")
@click.option("--width", type=PIXELS, help="Width in pixels. Default: 900.")
@click.option("--height", type=PIXELS, help="Height in pixels. Default: 420, or the height of --size.")
@click.option(
    "--scale",
    type=click.FloatRange(0.5, 8),
    help="Resolution of a PNG: image pixels per pixel. Default: 2, or 600 dots per inch with --size.",
)
@click.option("--layer", type=click.IntRange(0), help="For a run: number of the layer. Default: the first layer.")
@click.option(
    "--eigenvalues", help="For a run: eigenvalues drawn as lines, such as 0,3,7. Default: the ones with the largest ratios."
)
@click.option("--from-step", type=click.IntRange(0), help="For one or several runs: first step of the chart.")
@click.option("--to-step", type=click.IntRange(0), help="For one or several runs: last step of the chart.")
@click.option(
    "--group-by",
    multiple=True,
    callback=join_values,
    metavar="FIELD",
    help="For several runs: group by this field; can be repeated.",
)
@click.option("--show", type=Choice(["runs", "groups"]), help="For several runs: one line per run, or one band per group.")
@click.option("--x", type=Choice(["step", "tokens", "seconds"]), help="For several runs: horizontal axis.")
@click.option("--y", type=Choice(["log", "linear"]), help="Vertical axis. Default: depends on the chart.")
@click.option("--out", "-o", type=click.Path(path_type=Path), help="File to write. Default: OF-CHART.FORMAT.")
@DATA_DIR
def figure(
    of: tuple[str, Any], chart: str, format_: str | None, size: str | None, width: int | None, height: int | None,
    scale: float | None, out: Path | None, data_dir: Path | None, **view: Any,
) -> None:  # fmt: skip
    """Save one chart as PDF, SVG, PNG or HTML, as its page shows it. The ending of the -o file decides the format.

    OF is a run (7), several runs (7,8,9), a sweep (sweep:3), theory, or theory:7 for the weights of run 7.
    """
    kind, which = of
    format_ = _format(out, format_)
    if kind == "sweep" and not chart.startswith("sweep"):
        kind, which = "compare", {"sweep": which}
    paper: dict[str, Any] = {"size": size, "width": width, "height": height, "scale": scale}
    query = _query(kind, {name: value for name, value in view.items() if value is not None})
    with connect(data_dir) as client:
        if kind == "run":
            content = client.figure_file(which, chart, format_, **paper, **query)
        elif kind == "compare":
            content = client.compare_figure_file(chart, format_, **which, **paper, **query)
        elif kind == "sweep":
            content = client.sweep_figure_file(which, chart, format_, **paper)
        else:
            content = client.theory_figure_file(chart, format_, **which, **paper, **query)
    path = out or Path(f"{_file_stem(kind, which)}-{chart}.{format_}")
    path.write_bytes(content)
    click.echo(file_size(path))


def _format(out: Path | None, given: str | None) -> str:
    """The format of the file. Raises UsageError for an ending that is no format, or that differs from --format."""
    ending = out.suffix.removeprefix(".").lower() if out else ""
    allowed = ", ".join(f".{one}" for one in FORMATS)
    if ending == "csv":
        raise click.UsageError(f"a chart is not written as .csv; allowed: {allowed}. `stablessm export` writes the numbers.")
    if ending and ending not in FORMATS:
        guess = did_you_mean(ending, FORMATS)
        raise click.UsageError(f"{out} ends in .{ending[:20]}{guess}, which is no format of a figure; allowed: {allowed}")
    if ending and given and ending != given:
        raise click.UsageError(f"--format {given} and the ending of {out} differ; leave one of them out")
    if out and not ending and not given:
        raise click.UsageError(f"{out} has no ending that states the format; allowed: {allowed}")
    return given or ending or "pdf"


def _query(kind: str, view: dict[str, Any]) -> dict[str, Any]:
    """The view options in the form that the client accepts. Raises UsageError for options that have no effect on this kind."""
    allowed = {"run": RUN_OPTIONS, "compare": COMPARE_OPTIONS, "sweep": (), "theory": ("layer",)}[kind]
    for name in view:
        if name not in allowed:
            options = ", ".join("--" + one.replace("_", "-") for one in allowed) or "none"
            raise click.UsageError(f"--{name.replace('_', '-')} has no effect on this chart; allowed: {options}")
    if kind == "compare":
        return {{"from_step": "from", "to_step": "to"}.get(name, name): value for name, value in view.items()}
    if "eigenvalues" in view:
        view["eigenvalues"] = [int(part) for part in view["eigenvalues"].split(",") if part.strip().isdigit()]
    return view


def _file_stem(kind: str, which: Any) -> str:
    if kind in ("run", "sweep"):
        return f"{kind}-{which}"
    number = which.get("sweep") or which.get("run")
    return f"{kind}-{number}" if number else kind
