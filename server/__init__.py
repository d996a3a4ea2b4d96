"""Keeps and serves: database, REST, live stream, pages, command line."""
