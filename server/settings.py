"""Where everything is and what holds here: one object from the command line and the environment, passed to every part."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError
from pydantic_settings import BaseSettings, EnvSettingsSource, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

PREFIX = "STABLESSM_"
# without a variable: for the port of a service of our name Kubernetes sets one, to an address
OPTIONS_ONLY = frozenset(("host", "port", "auth"))
LEASES = (6.0, 600.0)  # seconds; heartbeats come every two
MOST = 1_000_000


def _split(names: object) -> object:
    if isinstance(names, str):
        return tuple(name.strip().lower() for name in names.split(",") if name.strip())
    return names


# resolved once, so that a later change of directory (or a child process elsewhere) cannot move the state
Folder = Annotated[Path, AfterValidator(lambda path: path.expanduser().resolve())]
Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)]  # in a variable separated by commas, not JSON


class Settings(BaseSettings):
    """Paths, addresses, access and limits of one installation."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_ignore_empty=True, frozen=True, populate_by_name=True, hide_input_in_errors=True
    )

    data_dir: Folder = Field(
        Path(".stablessm"),
        description="State: SQLite database, token, checkpoints, spool. One `up` or `worker` at a time uses it.",
    )
    database_url: Annotated[str, AfterValidator(lambda url: normalize_url(url))] = Field(
        default_factory=lambda found: f"sqlite:///{found['data_dir'] / 'stablessm.db'}",
        description="`sqlite:////absolute/path.db` or `postgresql+psycopg://user:password@host:5432/name`.",
    )
    broker_url: str | None = Field(
        None, description="`redis://:password@host:6379/0`. Without it workers look into the database themselves."
    )
    data_root: Folder = Field(
        default_factory=lambda found: found["data_dir"] / "data",
        validation_alias="STABLESSM_DATA",
        description="Folder of the data sets (below). Only workers read it.",
    )
    checkpoint_store: Annotated[str, AfterValidator(lambda url: check_store(url))] | None = Field(
        None, description="Where workers keep checkpoints beside their own disk, so that a run goes on on another machine: "
        "`s3://bucket/prefix` (address and keys from the `AWS_*` variables) or `file:///folder` on a disk that all share.",
    )  # fmt: skip
    host: str = "127.0.0.1"
    port: int = Field(8000, ge=0, le=65535)
    auth: bool = True
    token: str | None = Field(
        None,
        repr=False,
        description="The token browsers, the command line and programs show. At least 16 characters. "
        "Needed when the server listens on more than loopback.",
    )
    hosts: Names = Field(
        (), description="Further names the server answers to, comma separated, e.g. `monitor.example.org`. "
        "Loopback names always work on loopback.",
    )  # fmt: skip
    webhook_hosts: Names = Field(
        (), description="Names, `name` or `name:port`, comma separated and exact, that webhooks may reach although they are "
        "private, without TLS or on another port.",
    )  # fmt: skip
    failures_per_minute: int = Field(
        10, ge=1, le=MOST, description="Wrong tokens from one address per minute. "
        "Behind a reverse proxy that STABLESSM_TRUSTED_PROXIES does not name all clients have its address.",
    )  # fmt: skip
    runs_per_minute: int = Field(
        60, ge=0, le=MOST, description="Submissions of one token per minute, ten minutes' worth of them at once; a sweep is one. "
        "`0`: no limit.",
    )  # fmt: skip
    trusted_proxies: Names = Field(
        (), description="Addresses and networks of reverse proxies, comma separated, e.g. `10.0.0.7,10.1.0.0/16`. Of them alone "
        "`X-Forwarded-For` and `X-Forwarded-Proto` are believed: throttle and audit log get the client's address, and cookies "
        "are Secure.",
    )  # fmt: skip
    user_header: str | None = Field(
        None, description="Header in which a trusted proxy names the user, e.g. `X-Forwarded-User`; believed only beside a token "
        "made for a proxy (`stablessm token create --proxy`).",
    )  # fmt: skip
    lease_seconds: float = Field(
        25.0, ge=LEASES[0], le=LEASES[1], description="A run without a sign of life for so long has lost its worker and goes "
        "back to the queue; 6 to 600, the same on every worker and server.",
    )  # fmt: skip
    gpu_locks: Folder | None = Field(
        None, description="Folder with a lock per GPU, the same for all workers of a machine, those in containers too, so that "
        "no two of them train on one GPU. Only workers use it.",
    )  # fmt: skip
    max_queued: int = Field(20_000, ge=1, le=MOST, description="Runs that may wait at the same time.")
    streams_per_token: int = Field(200, ge=1, le=MOST, description="Live streams that one created token may have open.")
    audit_days: int = Field(90, ge=1, le=MOST, description="How long the audit log is kept.")
    trash_hours: float = Field(
        24.0, ge=0, le=MOST, description="How long a deleted run can be brought back; the same on every server. "
        "`0` deletes for good at once.",
    )  # fmt: skip
    retention_days: float = Field(
        0.0, ge=0, le=MOST, description="Runs that ended longer ago go to the trash. `0`, here and below: no limit.",
    )  # fmt: skip
    retention_runs: int = Field(
        0, ge=0, le=MOST, description="Of more ended runs than this the oldest go to the trash.",
    )  # fmt: skip
    retention_bytes: int = Field(
        0, ge=0, le=2**60, description="While all runs occupy more than this, the oldest ended ones go to the trash.",
    )  # fmt: skip
    retention_keep_tags: Names = Field(
        ("keep",), description="Tags, comma separated, letter case ignored: a run with one of them never goes by itself.",
    )  # fmt: skip

    @classmethod
    def from_environment(cls, **options: Any) -> Self:
        """Settings from the options that are not None, then from STABLESSM_* variables that are not empty, then the defaults.

        Raises ValueError that names the variable or the option, what was given and what is allowed.
        """
        try:
            return cls(**{name: value for name, value in options.items() if value is not None})
        except ValidationError as error:
            raise ValueError(_refusal(error)) from None

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - the signature is the library's
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, _Variables(settings_cls)


class _Variables(EnvSettingsSource):
    def __call__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__call__().items() if name not in OPTIONS_ONLY}


def variable_of(name: str) -> str | None:
    """The environment variable of a setting; None for those that are options only."""
    alias = Settings.model_fields[name].validation_alias
    return None if name in OPTIONS_ONLY else str(alias) if alias else PREFIX + name.upper()


def _refusal(error: ValidationError) -> str:
    """The first error in one line."""
    first = error.errors()[0]
    if first["type"] == "value_error":
        return str(first["ctx"]["error"])
    name, given = str(first["loc"][0]), str(first["input"])[:40]
    if (field := Settings.model_fields.get(name)) is None or not field.metadata:
        return f"{name}: {first['msg']}"
    limits = " to ".join(f"{getattr(limit, key):.0f}" for key in ("ge", "le") for limit in field.metadata if hasattr(limit, key))
    if first["type"] in ("greater_than_equal", "less_than_equal"):
        return f"{variable_of(name) or name} is {given}; allowed are {limits}"
    return f"{variable_of(name) or name} is {given!r}; allowed are {'whole ' * (field.annotation is int)}numbers from {limits}"


def make_private(folder: Path) -> None:
    """Make a folder that only its owner can look into, whatever the umask; one that is there stays as it is."""
    if not folder.exists():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def run_folder(data_dir: Path, run_id: int) -> Path:
    """What a run leaves on disk: checkpoints, log, spool."""
    return data_dir / "runs" / str(run_id)


def check_store(url: str) -> str:
    """The URL of a checkpoint store as it is; raises ValueError for a kind that is not supported."""
    protocol, separator, place = url.partition("://")
    if not separator or protocol not in ("s3", "file") or not place.strip("/") or (protocol == "file" and place[0] != "/"):
        raise ValueError(f"STABLESSM_CHECKPOINT_STORE is {url[:60]!r}; allowed are s3://bucket/prefix and file:///folder")
    return url


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
