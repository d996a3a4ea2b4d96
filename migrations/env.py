"""How Alembic reaches the database: the caller's connection and transaction, or, from Alembic's own command, the settings'."""

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
        render_as_batch=connection.dialect.name == "sqlite",  # SQLite changes a table by rebuilding it
        transactional_ddl=True,  # ours are: see server.database.connection, which begins every transaction itself
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
