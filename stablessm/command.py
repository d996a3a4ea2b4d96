"""The command `stablessm`. Where the service is installed, its program takes every command; here are the commands that work
without it."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path

from stablessm_core import __version__

SERVICE = "server.cli.main"
USAGE = """\
Usage: stablessm COMMAND

Commands:
  sync PATH...  Send runs that `stablessm.watch` recorded in files. A directory stands for all files of runs in it.
                The server is that of STABLESSM_URL and STABLESSM_TOKEN. The command can be repeated.
  doctor        Check what watching a model needs here: packages, server, token, and the folder of the files.

All other commands belong to the service, which is not installed here. In a clone of the repository: pip install . ./service
"""


def main() -> None:
    """Run the program of the service, or without it `sync` and `doctor`. Ends the process."""
    try:
        service = import_module(SERVICE)
    except ModuleNotFoundError as error:
        if f"{SERVICE}.".startswith(f"{error.name}."):
            sys.exit(without_service(sys.argv[1:]))
        raise
    service.main()


def without_service(arguments: list[str]) -> int:
    """Run a command that needs no service. Returns the exit status."""
    command, rest = (arguments[0], arguments[1:]) if arguments else ("--help", [])
    if command in ("-h", "--help") or (command in ("sync", "doctor") and set(rest) & {"-h", "--help"}):
        _say(USAGE.rstrip())
        return 0
    if command == "--version":
        _say(f"stablessm, version {__version__}")
        return 0
    if command not in ("sync", "doctor"):
        return _refuse(
            f"`stablessm {command}` belongs to the service, which is not installed here. "
            "In a clone of the repository: pip install . ./service"
        )
    if unknown := [text for text in rest if text.startswith("-") and text != "--"]:
        return _refuse(f"`stablessm {command}` has no option {unknown[0]}; its options come with the service")
    if command == "doctor":
        from stablessm.doctor import examine

        return examine(_say)
    return _sync([Path(text) for text in rest if text != "--"])


def _sync(paths: list[Path]) -> int:
    url = os.environ.get("STABLESSM_URL")
    if not url:
        return _refuse("`stablessm sync` needs the address of the server: set STABLESSM_URL, and STABLESSM_TOKEN")
    if not paths:
        return _refuse("`stablessm sync` needs at least one PATH: a file of a run, or a directory such as stablessm-runs")
    if missing := [path for path in paths if not path.exists()]:
        return _refuse(f"{missing[0]} does not exist")
    from stablessm_core.report.sync import sync_files

    return sync_files(paths, url, os.environ.get("STABLESSM_TOKEN"), _say, _complain)


def _say(text: str) -> None:
    print(text)  # noqa: T201


def _complain(text: str) -> None:
    print(text, file=sys.stderr)  # noqa: T201


def _refuse(sentence: str) -> int:
    _complain(f"Error: {sentence}")
    return 1
