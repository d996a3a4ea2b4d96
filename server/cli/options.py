"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from stablessm_core.spec.suggestions import did_you_mean


class Choice(click.Choice[str]):
    """click's choice between words. The error message also suggests the word that was probably meant."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            text = error.message.rstrip(".") + did_you_mean(value, map(str, self.choices))
            raise click.BadParameter(text, ctx, param) from None


def join_values(_context: click.Context, _parameter: click.Parameter, given: tuple[str, ...]) -> str | None:
    """The values of a repeated option, separated by commas; None if the option is not given."""
    return ",".join(given) if given else None


DATA_DIR = click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Data directory. Default: STABLESSM_DATA_DIR, else .stablessm.",
)
DATABASE = click.option(
    "--database-url",
    help="sqlite:///... or postgresql+psycopg://... Default: STABLESSM_DATABASE_URL, else SQLite in the data directory.",
)
BROKER = click.option("--broker-url", help="redis://... Default: STABLESSM_BROKER_URL, else workers poll the database.")
DATA_ROOT = click.option(
    "--data-root",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of the data sets. Default: STABLESSM_DATA, else data in the data directory.",
)
HOST = click.option("--host", default="127.0.0.1", show_default=True)
NO_AUTH = click.option("--no-auth", is_flag=True, help="Require no token; allowed only on a loopback address.")
RUN_ID = click.argument("run_id", type=click.IntRange(1), metavar="RUN")
