"""`stablessm token`: create, list and revoke tokens."""

from __future__ import annotations

import json
from pathlib import Path

import click

from server.cli.connection import connect
from server.cli.options import DATA_DIR, Choice
from server.cli.terminal import show, table, time_text


@click.group()
def token() -> None:
    """Create, list and revoke tokens. Needs a token with the scope admin."""


@token.command("create")
@click.argument("name")
@click.option("--scope", type=Choice(["read", "submit", "admin", "ingest"]), default="submit", show_default=True)
@click.option("--days", type=click.FloatRange(0, 36_500, min_open=True), help="Days until the token expires. Default: never.")
@click.option("--user", help="The user that the token belongs to. Default: a new user with the name of the token.")
@click.option("--proxy", is_flag=True, help="The token is for a trusted proxy whose header names the user of each request.")
@DATA_DIR
def create_token(name: str, scope: str, days: float | None, user: str | None, proxy: bool, data_dir: Path | None) -> None:
    """Create a token and print its secret. The secret is shown only once."""
    with connect(data_dir) as client:
        made = client.create_token(name, scope, days=days, user=user, names_users=proxy)
    click.echo(f"token {made['id']} ({made['scope']}); its secret is shown only once:", err=True)
    click.echo(made["secret"])


@token.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
@DATA_DIR
def list_tokens(as_json: bool, data_dir: Path | None) -> None:
    """List tokens, newest first."""
    with connect(data_dir) as client:
        found = client.tokens()
    if as_json:
        click.echo("\n".join(json.dumps(one) for one in found))
    else:
        rows = [
            [str(one["id"]), one["scope"], one["state"],
             *(time_text(one[at]) for at in ("created_at", "expires_at", "last_used_at")),
             one["name"], "a proxy's" if one["names_users"] else one["user"] or ""]
            for one in found
        ]  # fmt: skip
        titles = ["token", "scope", "state", "created", "expires", "last used", "name", "user"]
        show(table(rows, titles, numbers=("token",)) if rows else "No tokens.")


@token.command("revoke")
@click.argument("token_id", type=click.IntRange(1), metavar="TOKEN")
@DATA_DIR
def revoke_token(token_id: int, data_dir: Path | None) -> None:
    """Revoke the token with this number. From now on, the server refuses this token."""
    with connect(data_dir) as client:
        click.echo(f"token {token_id} ({client.revoke_token(token_id)['name']}) is revoked")
