"""The database, SQLite or PostgreSQL behind one face, and its schema."""
