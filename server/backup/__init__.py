"""Backups: the whole installation in one file, and restoring it."""
