"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path

import click

DATA_DIR = click.option("--data-dir", type=click.Path(path_type=Path, file_okay=False), help="State. Default: .stablessm")
DATABASE = click.option("--database-url", help="sqlite:///... or postgresql+psycopg://... Default: SQLite in the data directory.")
BROKER = click.option("--broker-url", help="redis://... Default: workers poll the database.")
DATA_ROOT = click.option("--data-root", type=click.Path(path_type=Path, file_okay=False), help="Data sets.")
HOST = click.option("--host", default="127.0.0.1", show_default=True)
NO_AUTH = click.option("--no-auth", is_flag=True, help="No token; on a loopback address only.")
RUN_ID = click.argument("run_id", type=click.IntRange(1), metavar="RUN")
