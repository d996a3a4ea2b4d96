"""The server: database, REST API, live stream, pages and command line."""
