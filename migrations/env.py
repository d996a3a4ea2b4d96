"""Connects Alembic to the database. If a caller passes a connection, the migrations run in the caller's transaction. If the
`alembic` command runs this file, the migrations run on the database that the settings name."""

from __future__ import annotations

from alembic import context
from sqlalchemy import Connection

from server.database.connection import Database
from server.database.models import Base
from server.settings import Settings


def migrate(connection: Connection) -> None:
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        render_as_batch=connection.dialect.name == "sqlite",  # Alembic must rebuild a SQLite table to change it
        # schema changes are transactional on SQLite as well, because server.database.connection begins every transaction itself
        transactional_ddl=True,
    )
    with context.begin_transaction():
        context.run_migrations()


if (given := context.config.attributes.get("connection")) is not None:
    migrate(given)
else:
    database = Database(Settings.from_environment().database_url)
    with database.engine.begin() as own:
        migrate(own)
    database.close()
