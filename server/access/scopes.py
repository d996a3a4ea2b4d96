"""Who may reach what: where a server may listen, its token, the scope that each request needs. Imports nothing slow."""

from __future__ import annotations

import os
import re
import secrets
from pathlib import Path

MIN_TOKEN_LENGTH = 16

# What is not named here needs the scope admin: a new route is closed until it is named.
PUBLIC = ("/healthz", "/login")  # need no token at all
READ_PAGES = frozenset(
    ("", "alerts", "compare", "docs", "logout", "me", "metrics", "new", "openapi.json", "queues", "readyz", "runs", "static",
     "sweeps", "systems", "theory", "trash", "workers")
)  # fmt: skip
READ_API = frozenset(
    ("alerts", "bulk", "compare", "exports", "fields", "figures", "me", "queues", "runs", "sparks", "sweeps", "systems", "theory",
     "trash", "views", "workers")
)  # fmt: skip
READ_METHODS = ("GET", "HEAD", "OPTIONS")
SUBMIT = re.compile(
    r"POST /api/(runs|sweeps|runs/[^/]+/(cancel|resume|clone|fork)|sweeps/[^/]+/cancel|bulk/(cancel|clone|hide|show)|views)"
    r"|PATCH /api/(runs|sweeps)/[^/]+|DELETE /api/views/[^/]+"
)


def needed_scope(method: str, path: str) -> str:
    """The scope that a request needs, from its method and its decoded path.

    Reading takes `read`, of logs and checkpoint files too; submitting, changing and stopping runs `submit`; tokens, webhooks, the
    audit log, deleting, and every route that is not named here, `admin`.
    """
    _, first, second = f"{path}//".split("/", 2)
    if method in READ_METHODS:
        known = second.split("/", 1)[0] in READ_API if first == "api" else first in READ_PAGES
        return "read" if known else "admin"
    if (method, path) in (("POST", "/logout"), ("PATCH", "/api/me")):
        return "read"  # what concerns nobody else
    return "submit" if SUBMIT.fullmatch(f"{method} {path}") else "admin"


def is_loopback(host: str) -> bool:
    return host in ("127.0.0.1", "::1", "localhost")


def check_bind(host: str, token: str | None, extra_hosts: tuple[str, ...], *, no_auth: bool) -> None:
    """Raises ValueError when a server must not be reachable like this."""
    if token is not None and len(token) < MIN_TOKEN_LENGTH:
        raise ValueError(f"STABLESSM_TOKEN has {len(token)} characters; a token has at least {MIN_TOKEN_LENGTH}")
    if is_loopback(host):
        return
    if no_auth:
        raise ValueError(f"--no-auth works on a loopback address only; the host is {host!r}")
    if not token:
        raise ValueError(f"host {host!r} can be reached by others: set STABLESSM_TOKEN to a secret of your own first")
    if not extra_hosts:
        raise ValueError(
            f"host {host!r} can be reached by others: set STABLESSM_HOSTS to the names it is reached by, "
            "for example monitor.example.org:8000"
        )


def load_or_create_token(path: Path) -> str:
    """The token in `path`, created with 256 random bits and mode 0600 when there is none. Raises ValueError for a short one."""
    if not path.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(secrets.token_urlsafe(32) + "\n")
        try:
            os.link(draft, path)  # appears whole or not at all, and never replaces another process's token
        except FileExistsError:
            pass
        draft.unlink()
    token = path.read_text().strip()
    if len(token) < MIN_TOKEN_LENGTH:
        raise ValueError(f"{path} holds {len(token)} characters; a token has at least {MIN_TOKEN_LENGTH}")
    return token
