"""The schema version of a database, and whether this code can work with it.

A revision is named `0007`, or `0007_from_0005` if its schema lacks something that code older than 0005 needs. Every later
revision repeats the highest suffix so far. So a program can work with a newer database unless the suffix forbids it. A database
that is older than the program lacks columns that the program reads, so it must be migrated.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

from sqlalchemy import Connection, inspect, text

_NAME = re.compile(r"(\d{4})(?:_from_(\d{4}))?")


class SchemaMismatch(ValueError):
    """This program cannot work with the database's schema; the message explains what to do."""


@cache
def newest_revision() -> int:
    """The number of the newest revision that this code knows. The code reads and writes this schema."""
    names = (entry.name for entry in (files("migrations") / "versions").iterdir())
    return max(int(match.group(1)) for name in names if (match := re.match(r"(\d{4})_\w+\.py$", name)))


def parse_revision(revision: str) -> tuple[int, int]:
    """(number of the revision, revision of the oldest code that works with this schema). Raises SchemaMismatch for an unknown
    name."""
    if (match := _NAME.fullmatch(revision)) is None:
        raise SchemaMismatch(f"the database's schema {revision[:60]!r} is not a schema of StableSSM")
    return int(match.group(1)), int(match.group(2) or 1)


def revision_of(connection: Connection) -> str | None:
    """The database's revision; None if the database has no schema yet."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    name = connection.scalar(text("SELECT version_num FROM alembic_version"))
    return name.decode() if isinstance(name, bytes) else name


def check(connection: Connection) -> str:
    """The database's revision if this code can work with it; raises SchemaMismatch."""
    revision = revision_of(connection)
    if revision is None:
        raise SchemaMismatch("the database has no schema yet: run `stablessm migrate`")
    number, oldest = parse_revision(revision)
    if number < newest_revision():
        raise SchemaMismatch(
            f"the database's schema is {number:04d}, but this version of StableSSM needs {newest_revision():04d}: "
            "run `stablessm migrate`"
        )
    if newest_revision() < oldest:
        raise SchemaMismatch(
            f"the database's schema is {number:04d}, which needs a StableSSM with schema {oldest:04d} or later; "
            f"this version has schema {newest_revision():04d}: install the newer version"
        )
    return revision
