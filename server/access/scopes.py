"""Access rules: the addresses on which a server may listen, the server's token, and the scope that a request needs. This module
avoids slow imports."""

from __future__ import annotations

import os
import re
import secrets
from pathlib import Path

MIN_TOKEN_LENGTH = 16

# A route that these lists do not contain needs the scope admin, so a new route stays restricted until it is listed.
PUBLIC = ("/healthz", "/login")  # paths that need no token
READ_PAGES = frozenset(
    ("", "alerts", "compare", "docs", "logout", "me", "metrics", "new", "openapi.json", "paper", "queues", "readyz", "runs",
     "static", "sweeps", "systems", "theory", "trash", "workers")
)  # fmt: skip
READ_API = frozenset(
    ("alerts", "bulk", "compare", "exports", "fields", "figures", "me", "paper", "queues", "runs", "silences", "sparks", "sweeps",
     "systems", "theory", "trash", "views", "workers")
)  # fmt: skip
READ_METHODS = ("GET", "HEAD", "OPTIONS")
# a scope beside the others: it opens and writes runs that its own program reports, and compares numbers with them; it reads
# nothing else
INGEST = "ingest"
REPORTS = re.compile(r"POST /api/ingest/runs(/[^/]+/(records|compare))?")
SUBMIT = re.compile(
    r"POST /api/(runs|sweeps|runs/[^/]+/(cancel|resume|clone|fork|autopsy)|sweeps/[^/]+/cancel)"
    r"|POST /api/(bulk/(cancel|clone|hide|show)|views)"
    r"|POST /api/silences|DELETE /api/silences/[^/]+"
    r"|POST /new(/check)?|PATCH /api/(runs|sweeps)/[^/]+|DELETE /api/views/[^/]+"
)


def needed_scope(method: str, path: str) -> str:
    """The scope that a request with this method and this decoded path needs.

    `read` is for reading, including logs and checkpoint files. `submit` is for submitting, changing and stopping runs. `admin` is
    for tokens, webhooks, the audit log, deleting, and every unlisted route. `ingest` is for reporting a run of another program;
    the scopes `submit` and `admin` include it, and it includes no other scope.
    """
    _, first, second = f"{path}//".split("/", 2)
    if method in READ_METHODS:
        known = second.split("/", 1)[0] in READ_API if first == "api" else first in READ_PAGES
        return "read" if known else "admin"
    if (method, path) in (("POST", "/logout"), ("PATCH", "/api/me")):
        return "read"  # these requests affect only the user who sends them
    if REPORTS.fullmatch(f"{method} {path}"):
        return INGEST
    return "submit" if SUBMIT.fullmatch(f"{method} {path}") else "admin"


def is_loopback(host: str) -> bool:
    return host in ("127.0.0.1", "::1", "localhost")


def check_bind(host: str, token: str | None, extra_hosts: tuple[str, ...], *, no_auth: bool) -> None:
    """Raises ValueError if it would be unsafe for a server to listen on this address."""
    if token is not None and len(token) < MIN_TOKEN_LENGTH:
        raise ValueError(f"STABLESSM_TOKEN has {len(token)} characters; a token has at least {MIN_TOKEN_LENGTH}")
    if is_loopback(host):
        return
    if no_auth:
        raise ValueError(f"--no-auth works on a loopback address only; the host is {host!r}")
    if not token:
        raise ValueError(f"other machines can reach the host {host!r}: first set STABLESSM_TOKEN to a secret of your own")
    if not extra_hosts:
        raise ValueError(
            f"other machines can reach the host {host!r}: set STABLESSM_HOSTS to its names, for example monitor.example.org:8000"
        )


def load_or_create_token(path: Path) -> str:
    """The token in the file `path`. A missing file is created with 256 random bits and mode 0600. Raises ValueError if
    the token is too short."""
    if not path.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(secrets.token_urlsafe(32) + "\n")
        try:
            os.link(draft, path)  # a link is created atomically and never replaces another process's token
        except FileExistsError:
            pass
        draft.unlink()
    token = path.read_text().strip()
    if len(token) < MIN_TOKEN_LENGTH:
        raise ValueError(f"{path} holds {len(token)} characters; a token has at least {MIN_TOKEN_LENGTH}")
    return token
