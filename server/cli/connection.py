"""The client of the commands that use a server over REST."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stablessm_core.client import Client


def client(data_dir: Path | None) -> Client:
    """A client of the server that STABLESSM_URL names, else of the one of this data directory."""
    from stablessm_core.client import Client, find_server

    return Client(*find_server(data_dir))
