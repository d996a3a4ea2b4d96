"""The client that commands use to reach a server over REST."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from stablessm_core.client import ApiError, Client, find_server
from stablessm_core.client.connection import ConnectionLost


@contextmanager
def connect(data_dir: Path | None) -> Iterator[Client]:
    """A client for the server that STABLESSM_URL names; by default, for the server that runs on this data directory.

    An error of the client becomes a ClickException that explains what to do.
    """
    url, token = find_server(data_dir)
    with Client(url, token) as client:
        try:
            yield client
        except ApiError as error:
            if error.status != 401:
                raise click.ClickException(str(error)) from None
            what = "does not accept this token" if token else "needs a token"
            advice = "set STABLESSM_TOKEN, or --data-dir to the folder of `stablessm up`"
            raise click.ClickException(f"the server at {client.url} {what}; {advice}") from None
        except ConnectionLost as error:
            text = f"no server answers at {client.url} ({error}); start one with `stablessm up`, or set STABLESSM_URL"
            raise click.ClickException(text) from None
