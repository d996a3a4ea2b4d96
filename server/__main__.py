"""`python -m server`: the same as `stablessm`."""

from server.cli import main

main()
