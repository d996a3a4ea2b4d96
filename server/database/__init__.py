"""The database (SQLite or PostgreSQL behind one interface) and its schema."""
