"""Schema migrations (Alembic), run by `stablessm migrate` and by `Database.migrate()`."""
