"""`stablessm token`: create, list and revoke tokens over REST."""

from __future__ import annotations

import json
from pathlib import Path

import click

from server.cli.connection import connect

DATA_DIR = click.option(
    "--data-dir", type=click.Path(path_type=Path, file_okay=False), help="Where the server and its token are."
)


@click.group()
def token() -> None:
    """Create, list and revoke tokens (with a token of the scope admin)."""


@token.command("create")
@click.argument("name")
@click.option("--scope", type=click.Choice(["read", "submit", "admin"]), default="submit", show_default=True)
@click.option("--days", type=click.FloatRange(0, 36_500, min_open=True), help="Ends after so many days. Default: never.")
@click.option("--user", help="Whose it is, by name. Default: a new user named like the token.")
@click.option("--proxy", is_flag=True, help="A trusted proxy's: its header names the user of each request.")
@DATA_DIR
def create_token(name: str, scope: str, days: float | None, user: str | None, proxy: bool, data_dir: Path | None) -> None:
    """Create a token and print its secret, which is shown this once."""
    with connect(data_dir) as client:
        made = client.create_token(name, scope, days=days, user=user, names_users=proxy)
    click.echo(f"token {made['id']} ({made['scope']}); its secret is shown this once:", err=True)
    click.echo(made["secret"])


@token.command("list")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
@DATA_DIR
def list_tokens(as_json: bool, data_dir: Path | None) -> None:
    """List tokens, newest first: scope, state, when they end and were last used."""
    from server.cli.terminal import show, token_table

    with connect(data_dir) as client:
        found = client.tokens()
    if as_json:
        click.echo("\n".join(json.dumps(one) for one in found))
    else:
        show(token_table(found))


@token.command("revoke")
@click.argument("token_id", type=click.IntRange(1), metavar="TOKEN")
@DATA_DIR
def revoke_token(token_id: int, data_dir: Path | None) -> None:
    """Revoke a token by its number: it is refused from now on."""
    with connect(data_dir) as client:
        click.echo(f"token {token_id} ({client.revoke_token(token_id)['name']}) is revoked")
