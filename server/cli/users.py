"""`stablessm user`: who you are here, your name, and, for administrators, what each user may use."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from server.cli.connection import connect
from server.cli.options import DATA_DIR

if TYPE_CHECKING:
    from stablessm_core.client import Client

NAME = click.argument("name")
LIMIT = "COUNT|none"


@click.group()
def user() -> None:
    """Users: list them, set quotas, grant the runs of others; or see who you are and set your own name."""


@user.command("list")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
@DATA_DIR
def list_users(as_json: bool, data_dir: Path | None) -> None:
    """List all users with quotas, and what they use now."""
    with connect(data_dir) as client:
        _show(client.users(), as_json=as_json)


@user.command()
@DATA_DIR
def me(data_dir: Path | None) -> None:
    """Say whose token is used here, what it may do, and what is used of your quotas."""
    with connect(data_dir) as client:
        found = client.me()
    click.echo(f"token {found['token']!r} of the scope {found['scope']}")
    if found["user"] is None:
        click.echo("it is nobody's yet: `stablessm user name NAME` makes it yours")
    else:
        _show([found["user"]])


@user.command()
@NAME
@DATA_DIR
def name(name: str, data_dir: Path | None) -> None:
    """Set the name that you are shown under, on all your runs."""
    with connect(data_dir) as client:
        click.echo(f"you are {client.name_me(name)['user']['name']!r}")


@user.command()
@NAME
@click.option("--running", metavar=LIMIT, help="Runs that may run at once.")
@click.option("--queued", metavar=LIMIT, help="Runs that may wait.")
@click.option("--bytes", "stored", metavar=LIMIT, help="Bytes that all their runs may occupy when they submit another.")
@DATA_DIR
def quota(name: str, running: str | None, queued: str | None, stored: str | None, data_dir: Path | None) -> None:
    """Set what the user NAME may use; `none` takes a limit away, what is not given stays."""
    given = {"max_running": running, "max_queued": queued, "max_bytes": stored}
    changes = {field: _limit(text) for field, text in given.items() if text is not None}
    if not changes:
        raise click.UsageError("give at least one of --running, --queued, --bytes")
    with connect(data_dir) as client:
        _show([client.change_user(_number(client, name), **changes)])


@user.command()
@NAME
@click.option("--revoke", is_flag=True, help="Take it back.")
@DATA_DIR
def grant(name: str, revoke: bool, data_dir: Path | None) -> None:
    """Let the user NAME change, cancel and resume runs of others."""
    with connect(data_dir) as client:
        changed = client.change_user(_number(client, name), may_change_all=not revoke)
    click.echo(f"{changed['name']} may change {'all runs' if changed['may_change_all'] else 'their own runs only'}")


def _number(client: Client, name: str) -> int:
    known = {one["name"].casefold(): int(one["id"]) for one in client.users()}
    if name.casefold() not in known:
        raise click.BadParameter(f"there is no user {name[:100]!r}; allowed are {', '.join(sorted(known))}")
    return known[name.casefold()]


def _limit(text: str) -> int | None:
    if text != "none" and not (text.isascii() and text.isdigit()):
        raise click.BadParameter(f"{text[:40]!r} is no limit; allowed are whole numbers from 0 on, or none")
    return None if text == "none" else int(text[:19])


def _show(users: list[dict[str, Any]], *, as_json: bool = False) -> None:
    from server.cli.terminal import show, user_table

    if as_json:
        click.echo("\n".join(json.dumps(one) for one in users))
    else:
        show(user_table(users))
