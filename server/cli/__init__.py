"""The command line: `stablessm`."""
