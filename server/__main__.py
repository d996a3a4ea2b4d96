"""`python -m server`: the same as `stablessm`."""

from server.cli.main import main

main()
