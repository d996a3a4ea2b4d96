"""Which version of the schema a database has, and whether this code can work with it.

A revision is named `0007`, or `0007_from_0005` once the schema has lost something that code older than 0005 needs. Every
later revision repeats the highest such mark. So a program can judge a database that is newer than itself: it works with it
unless the mark says otherwise. One that is older than the program lacks columns that the program reads; it must be migrated.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

from sqlalchemy import Connection, inspect, text

_NAME = re.compile(r"(\d{4})(?:_from_(\d{4}))?")


class SchemaMismatch(ValueError):
    """This program cannot work with this database's schema; the text says what can be done."""


@cache
def needed() -> int:
    """The number of the newest revision this code knows: what it reads and writes."""
    names = (entry.name for entry in (files("migrations") / "versions").iterdir())
    return max(int(match.group(1)) for name in names if (match := re.match(r"(\d{4})_\w+\.py$", name)))


def numbers(revision: str) -> tuple[int, int]:
    """(its number, the oldest code that works with it). Raises SchemaMismatch for a name that is not ours."""
    if (match := _NAME.fullmatch(revision)) is None:
        raise SchemaMismatch(f"the database's schema is {revision[:60]!r}, which is no version of StableSSM")
    return int(match.group(1)), int(match.group(2) or 1)


def revision_of(connection: Connection) -> str | None:
    """The database's revision, None while it has no schema yet."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    name = connection.scalar(text("SELECT version_num FROM alembic_version"))
    return name.decode() if isinstance(name, bytes) else name


def check(connection: Connection) -> str:
    """The database's revision if this code can work with it; raises SchemaMismatch."""
    revision = revision_of(connection)
    if revision is None:
        raise SchemaMismatch("the database has no schema yet: run `stablessm migrate`")
    number, oldest = numbers(revision)
    if number < needed():
        raise SchemaMismatch(
            f"the database's schema is {number:04d}, this version of StableSSM needs {needed():04d}: run `stablessm migrate`"
        )
    if needed() < oldest:
        raise SchemaMismatch(
            f"the database's schema is {number:04d}, made for StableSSM with schema {oldest:04d} or later; "
            f"this version knows {needed():04d}: install the newer version"
        )
    return revision
