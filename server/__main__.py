"""`python -m server` does the same as the command `stablessm`."""

from server.cli.main import main

main()
