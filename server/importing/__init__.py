"""Reads runs from the files of other tools, and sends them to a server over the protocol."""
