"""A running server for the commands."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from server.database.connection import Database
from tests.server.http_service import TOKEN, running


@pytest.fixture
def served_dir(sqlite: Database, tmp_path: Path) -> Iterator[Path]:
    """The data directory of a running server, with the files that `stablessm up` writes."""
    folder = tmp_path / "state"
    with running(sqlite.url, tmp_path) as (address, _):
        folder.mkdir(exist_ok=True)
        (folder / "up.json").write_text(json.dumps({"pid": os.getpid(), "url": address}))
        (folder / "token").write_text(TOKEN)
        yield folder
