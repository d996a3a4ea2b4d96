"""`stablessm user`: shows who you are, sets your name and, for administrators, sets quotas and permissions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from server.cli.connection import connect
from server.cli.options import DATA_DIR
from server.cli.terminal import show, table
from stablessm_core.client import Client
from stablessm_core.spec.suggestions import did_you_mean, listed

NAME = click.argument("name")
LIMIT = "COUNT|none"


@click.group()
def user() -> None:
    """List users and set their quotas and permissions, or show who you are and set your own name."""


@user.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
@DATA_DIR
def list_users(as_json: bool, data_dir: Path | None) -> None:
    """List all users with their quotas and current use."""
    with connect(data_dir) as client:
        _show(client.users(), as_json=as_json)


@user.command()
@DATA_DIR
def me(data_dir: Path | None) -> None:
    """Show your token, its scope, your quotas and your current use."""
    with connect(data_dir) as client:
        found = client.me()
    click.echo(f"token {found['token']!r} of the scope {found['scope']}")
    if found["user"] is None:
        click.echo("it belongs to no user yet; `stablessm user name NAME` makes it yours")
    else:
        _show([found["user"]])


@user.command()
@NAME
@DATA_DIR
def name(name: str, data_dir: Path | None) -> None:
    """Set the name under which your runs are shown."""
    with connect(data_dir) as client:
        click.echo(f"you are {client.name_me(name)['user']['name']!r}")


@user.command()
@NAME
@click.option("--running", metavar=LIMIT, help="Maximum number of running runs.")
@click.option("--queued", metavar=LIMIT, help="Maximum number of queued runs.")
@click.option("--bytes", "stored", metavar=LIMIT, help="Size of all runs in bytes at which new submissions are refused.")
@DATA_DIR
def quota(name: str, running: str | None, queued: str | None, stored: str | None, data_dir: Path | None) -> None:
    """Set the quotas of the user NAME. `none` removes a limit; quotas that are not named remain unchanged."""
    given = {"max_running": running, "max_queued": queued, "max_bytes": stored}
    changes = {field: _limit(text) for field, text in given.items() if text is not None}
    if not changes:
        raise click.UsageError("give at least one of --running, --queued, --bytes")
    with connect(data_dir) as client:
        _show([client.change_user(_number(client, name), **changes)])


@user.command()
@NAME
@click.option("--revoke", is_flag=True, help="Withdraw the permission.")
@DATA_DIR
def grant(name: str, revoke: bool, data_dir: Path | None) -> None:
    """Allow the user NAME to change, cancel and resume runs of other users."""
    with connect(data_dir) as client:
        changed = client.change_user(_number(client, name), may_change_all=not revoke)
    click.echo(f"{changed['name']} may change {'all runs' if changed['may_change_all'] else 'their own runs only'}")


def _number(client: Client, name: str) -> int:
    known = {one["name"].casefold(): int(one["id"]) for one in client.users()}
    if name.casefold() not in known:
        raise click.BadParameter(f"there is no user {name[:100]!r}{did_you_mean(name, known)}; known: {listed(sorted(known))}")
    return known[name.casefold()]


def _limit(text: str) -> int | None:
    if text != "none" and not (text.isascii() and text.isdigit()):
        raise click.BadParameter(f"{text[:40]!r} is not a limit; allowed: a whole number of at least 0, or none")
    return None if text == "none" else int(text[:19])


def _show(users: list[dict[str, Any]], *, as_json: bool = False) -> None:
    if as_json:
        click.echo("\n".join(json.dumps(one) for one in users))
    else:
        rows = [
            [str(one["id"]), *(_used(one[used], one[f"max_{used}"]) for used in ("running", "queued", "bytes")),
             "all" if one["may_change_all"] else "own", one["name"]]
            for one in users
        ]  # fmt: skip
        titles = ["user", "running", "queued", "bytes", "changes runs", "name"]
        show(table(rows, titles, numbers=("user", "running", "queued", "bytes")))


def _used(used: int, quota: int | None) -> str:
    return f"{used:,}" if quota is None else f"{used:,} of {quota:,}"
