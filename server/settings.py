"""Where everything is: one object made from the environment and the command line, passed to every part."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

DEFAULT_DATA_DIR = ".stablessm"
NUMBERS = {  # field: variable, least
    "failures_per_minute": ("STABLESSM_FAILURES_PER_MINUTE", 1),
    "runs_per_minute": ("STABLESSM_RUNS_PER_MINUTE", 0),
    "max_queued": ("STABLESSM_MAX_QUEUED", 1),
    "streams_per_token": ("STABLESSM_STREAMS_PER_TOKEN", 1),
    "audit_days": ("STABLESSM_AUDIT_DAYS", 1),
}
LISTS = {"hosts": "STABLESSM_HOSTS", "webhook_hosts": "STABLESSM_WEBHOOK_HOSTS"}  # separated by commas
MOST = 1_000_000
LEASES = (6.0, 600.0)  # seconds; heartbeats come every two


@dataclass(frozen=True)
class Settings:
    """Paths, addresses and access of one installation."""

    data_dir: Path = Path(DEFAULT_DATA_DIR)  # state: database, token, checkpoints, spool
    database_url: str = ""  # empty: SQLite in the data directory
    broker_url: str | None = None  # None: workers poll the database
    data_root: Path = field(default=Path())  # data sets; empty: `data` in the data directory
    host: str = "127.0.0.1"
    port: int = 8000
    token: str | None = field(default=None, repr=False)  # None: <data_dir>/token
    auth: bool = True
    hosts: tuple[str, ...] = ()  # names the server answers to besides loopback and `host`
    webhook_hosts: tuple[str, ...] = ()  # exact `name` or `name:port` that webhooks may reach although they are private
    failures_per_minute: int = 10  # wrong tokens from one address
    runs_per_minute: int = 60  # submissions of one token, ten minutes' worth of them at once; 0: no limit
    max_queued: int = 20_000  # runs that wait at the same time
    streams_per_token: int = 200  # live streams of one created token
    audit_days: int = 90  # how long the audit log is kept
    lease_seconds: float = 25.0  # a run without a sign of life for so long has lost its worker; seen within 30 s

    def __post_init__(self) -> None:
        # resolved once, so that a later change of directory (or a child process elsewhere) cannot move the state
        data_dir = Path(self.data_dir).expanduser().resolve()
        root = Path(self.data_root).expanduser().resolve() if self.data_root != Path() else data_dir / "data"
        object.__setattr__(self, "data_dir", data_dir)
        object.__setattr__(self, "data_root", root)
        object.__setattr__(self, "database_url", normalize_url(self.database_url or f"sqlite:///{data_dir / 'stablessm.db'}"))
        if not 0 <= self.port <= 65535:
            raise ValueError(f"port is {self.port}; allowed are 0 to 65535")
        for name, (variable, least) in NUMBERS.items():
            if not least <= getattr(self, name) <= MOST:
                raise ValueError(f"{variable} is {getattr(self, name)}; allowed are {least} to {MOST}")

        if not LEASES[0] <= self.lease_seconds <= LEASES[1]:
            raise ValueError(f"STABLESSM_LEASE_SECONDS is {self.lease_seconds:g}; allowed are {LEASES[0]:g} to {LEASES[1]:g}")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None, **overrides: Any) -> Self:
        """Settings from STABLESSM_* variables; an override that is not None wins. Empty variables count as unset.

        STABLESSM_DATA_DIR, STABLESSM_DATABASE_URL, STABLESSM_BROKER_URL, STABLESSM_DATA, STABLESSM_TOKEN,
        STABLESSM_LEASE_SECONDS, and those of LISTS and NUMBERS.
        """
        env = os.environ if environment is None else environment
        names = {
            "data_dir": "STABLESSM_DATA_DIR",
            "database_url": "STABLESSM_DATABASE_URL",
            "broker_url": "STABLESSM_BROKER_URL",
            "data_root": "STABLESSM_DATA",
            "token": "STABLESSM_TOKEN",
        }
        values: dict[str, Any] = {name: env[variable] for name, variable in names.items() if env.get(variable)}
        for name, variable in LISTS.items():
            if env.get(variable):
                values[name] = tuple(part.strip().lower() for part in env[variable].split(",") if part.strip())
        for name, (variable, least) in NUMBERS.items():
            if given := env.get(variable):
                if not (given.isascii() and given.isdigit()):
                    raise ValueError(f"{variable} is {given[:40]!r}; allowed are whole numbers from {least} to {MOST}")
                values[name] = int(given[:20])
        if given := env.get("STABLESSM_LEASE_SECONDS"):
            try:
                values["lease_seconds"] = float(given)
            except ValueError:
                raise ValueError(f"STABLESSM_LEASE_SECONDS is {given[:40]!r}; allowed are numbers of seconds") from None
        values.update({name: value for name, value in overrides.items() if value is not None})
        for name in ("data_dir", "data_root"):
            if name in values:
                values[name] = Path(values[name])
        return cls(**values)


def run_folder(data_dir: Path, run_id: int) -> Path:
    """What a run leaves on disk: checkpoints, log, spool."""
    return data_dir / "runs" / str(run_id)


def normalize_url(url: str) -> str:
    """The SQLAlchemy URL of a SQLite or PostgreSQL database; raises ValueError for anything else."""
    scheme, separator, rest = url.partition("://")
    driver = {
        "sqlite": "sqlite",
        "sqlite+pysqlite": "sqlite",
        "postgres": "postgresql+psycopg",
        "postgresql": "postgresql+psycopg",
        "postgresql+psycopg": "postgresql+psycopg",
    }.get(scheme)
    if not separator or driver is None:
        raise ValueError(f"database URL starts with {scheme!r}; allowed are sqlite:/// and postgresql+psycopg://")
    if driver == "sqlite" and rest.lstrip("/").split("?")[0] in ("", ":memory:"):
        raise ValueError("the SQLite database must be a file, since several processes share it")
    return f"{driver}://{rest}"
