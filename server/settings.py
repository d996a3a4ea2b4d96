"""The settings of an installation: one object, created from the command line and the environment and passed to every part."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Annotated, Any, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError
from pydantic_settings import BaseSettings, EnvSettingsSource, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

PREFIX = "STABLESSM_"
# These options have no environment variable, because Kubernetes sets STABLESSM_PORT to an address if a service is named
# stablessm.
OPTIONS_ONLY = frozenset(("host", "port", "auth"))
LEASES = (6.0, 600.0)  # shortest and longest lease in seconds; heartbeats are sent every two seconds
MOST = 1_000_000
SMTP_TLS = ("starttls", "tls", "none")


def _split(names: object) -> object:
    if isinstance(names, str):
        return tuple(name.strip().lower() for name in names.split(",") if name.strip())
    return names


def _on_or_off(given: object) -> object:
    if isinstance(given, bool):
        return given
    if str(given).strip().lower() not in ("on", "off"):
        raise ValueError(f"{PREFIX}AUTOPSY is {str(given)[:40]!r}; allowed: on, off")
    return str(given).strip().lower() == "on"


# resolved once, so that a change of the working directory (here or in a child process) does not move the files
Folder = Annotated[Path, AfterValidator(lambda path: path.expanduser().resolve())]
Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)]  # a variable contains names separated by commas, not JSON


class Settings(BaseSettings):
    """Paths, addresses, access and limits of one installation."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_ignore_empty=True, frozen=True, populate_by_name=True, hide_input_in_errors=True
    )

    data_dir: Folder = Field(
        Path(".stablessm"),
        description="Folder for all state: SQLite database, token, checkpoints and spool. "
        "Only one `up` or `worker` may use it at a time.",
    )
    database_url: Annotated[str, AfterValidator(lambda url: normalize_url(url))] = Field(
        default_factory=lambda found: f"sqlite:///{found['data_dir'] / 'stablessm.db'}",
        description="`sqlite:////absolute/path.db` or `postgresql+psycopg://user:password@host:5432/name`.",
    )
    broker_url: str | None = Field(
        None, description="`redis://:password@host:6379/0`. Without a broker, workers poll the database."
    )
    data_root: Folder = Field(
        default_factory=lambda found: found["data_dir"] / "data",
        validation_alias="STABLESSM_DATA",
        description="Folder of the data sets (below). Only workers read it.",
    )
    checkpoint_store: Annotated[str, AfterValidator(lambda url: check_store(url))] | None = Field(
        None, description="Where workers also store checkpoints, so that a run can resume on another machine: "
        "`s3://bucket/prefix` (address and keys from the `AWS_*` variables) or `file:///folder` on a shared disk.",
    )  # fmt: skip
    host: str = "127.0.0.1"
    port: int = Field(8000, ge=0, le=65535)
    auth: bool = True
    token: str | None = Field(
        None,
        repr=False,
        description="The token that browsers, the command line and programs must send. At least 16 characters. "
        "Needed if the server listens on more than loopback.",
    )
    hosts: Names = Field(
        (), description="Further host names of the server, comma separated, e.g. `monitor.example.org`. "
        "A server that listens on loopback always accepts `localhost`, `127.0.0.1` and `[::1]`.",
    )  # fmt: skip
    webhook_hosts: Names = Field(
        (), description="Hosts that webhooks may reach even if they are private, without TLS or on another port: exact names, "
        "`name` or `name:port`, comma separated.",
    )  # fmt: skip
    public_url: Annotated[str, AfterValidator(lambda url: check_public_url(url))] | None = Field(
        None, description="Address of this server in messages, e.g. `https://monitor.example.org`. "
        "Without it, links lead to the first of `STABLESSM_HOSTS`, by http.",
    )  # fmt: skip
    notify_critical_seconds: float = Field(
        5.0, ge=0, le=3600, description="How long a message about critical alerts waits for further alerts of the same run "
        "and kind. Each of them prolongs the wait, at most to `STABLESSM_NOTIFY_SECONDS`.",
    )  # fmt: skip
    notify_seconds: float = Field(
        30.0, ge=0, le=3600, description="How long all other messages wait for further events of the same run and kind.",
    )  # fmt: skip
    notify_repeat_hours: float = Field(
        4.0, ge=0.01, le=8760, description="After how many hours a message about an alert that lasts is sent again.",
    )  # fmt: skip
    smtp_host: str | None = Field(
        None, description="Mail server for messages to `mailto:` addresses. Without it, there is no mail."
    )
    smtp_port: int = Field(587, ge=1, le=65535, description="Port of the mail server.")
    smtp_tls: Annotated[str, AfterValidator(lambda tls: check_smtp_tls(tls))] = Field(
        "starttls", description="`starttls`, `tls` (from the first byte, usually on port 465) or `none` (not encrypted).",
    )  # fmt: skip
    smtp_user: str | None = Field(None, description="User name at the mail server. Without it, the server does not sign in.")
    smtp_password: str | None = Field(None, repr=False, description="Password at the mail server.")
    smtp_from: str | None = Field(None, description="Sender of the messages, e.g. `stablessm@example.org`.")
    failures_per_minute: int = Field(
        10, ge=1, le=MOST, description="Number of wrong tokens that one address may send per minute. "
        "Clients of a reverse proxy share its address unless STABLESSM_TRUSTED_PROXIES names the proxy.",
    )  # fmt: skip
    runs_per_minute: int = Field(
        60, ge=0, le=MOST, description="Maximum number of submissions per token and minute. A burst may use ten minutes' worth "
        "at once. A sweep counts as one submission. `0`: no limit.",
    )  # fmt: skip
    ingest_posts_per_minute: int = Field(
        30_000, ge=0, le=MOST, description="Number of times per minute that programs with one token may post records of the runs "
        "that they report. A program posts about once a second. `0`: no limit.",
    )  # fmt: skip
    ingest_mib_per_minute: int = Field(
        6_000, ge=0, le=MOST, description="Number of MiB of records per minute that programs with one token may post. "
        "`0`: no limit.",
    )  # fmt: skip
    trusted_proxies: Names = Field(
        (), description="Addresses and networks of reverse proxies, comma separated, e.g. `10.0.0.7,10.1.0.0/16`. The server "
        "trusts `X-Forwarded-For` and `X-Forwarded-Proto` only from these addresses: rate limits and audit log then use the "
        "client's address, and cookies are Secure.",
    )  # fmt: skip
    user_header: str | None = Field(
        None, description="Header in which a trusted proxy names the user, e.g. `X-Forwarded-User`. Accepted only together with "
        "a token for proxies (`stablessm token create --proxy`).",
    )  # fmt: skip
    proxy_users: int = Field(
        1000, ge=0, le=10_000, description="How many users may have an identity. A trusted proxy cannot add further users; "
        "administrators can.",
    )  # fmt: skip
    lease_seconds: float = Field(
        25.0, ge=LEASES[0], le=LEASES[1], description="A run without a heartbeat for this many seconds counts as lost and "
        "returns to the queue. Use the same value, 6 to 600, on every worker and server.",
    )  # fmt: skip
    reported_lease_seconds: float = Field(
        60.0, ge=LEASES[0], le=LEASES[1], description="A run that another program reports counts as lost after this many seconds "
        "without a message. It goes on when the program reports again. Use the same value on every worker and server.",
    )  # fmt: skip
    gpu_locks: Folder | None = Field(
        None, description="Folder with a lock per GPU, shared by all workers of a machine, including those in containers, so "
        "that no two of them train on one GPU. Only workers use it.",
    )  # fmt: skip
    min_free_mib: int = Field(
        256, ge=0, le=MOST, description="Free space in MiB that a worker wants in its data directory. With less, it claims no "
        "runs; with less than half, it returns its running runs to the queue. `0`: only a failed write stops it.",
    )  # fmt: skip
    max_queued: int = Field(20_000, ge=1, le=MOST, description="Maximum number of queued runs.")
    streams_per_token: int = Field(200, ge=1, le=MOST, description="Maximum number of open live streams per created token.")
    backups: Folder | None = Field(
        None, description="Folder into which `stablessm backup` writes. The server only reports the age of the newest backup. "
        "Not needed if `backup` uses the server's data directory and may write there.",
    )  # fmt: skip
    audit_days: int = Field(90, ge=1, le=MOST, description="How long the audit log is kept.")
    trash_hours: float = Field(
        24.0, ge=0, le=MOST, description="For how many hours a deleted run can be restored. "
        "Use the same value on every server. `0` deletes runs permanently at once.",
    )  # fmt: skip
    retention_days: float = Field(
        0.0, ge=0, le=MOST, description="Runs that ended more than this many days ago go to the trash. "
        "`0` means no limit, here and in the next two rows.",
    )  # fmt: skip
    retention_runs: int = Field(
        0, ge=0, le=MOST, description="If there are more ended runs than this, the oldest go to the trash.",
    )  # fmt: skip
    retention_bytes: int = Field(
        0, ge=0, le=2**60, description="While all runs occupy more than this, the oldest ended runs go to the trash.",
    )  # fmt: skip
    retention_keep_tags: Names = Field(
        ("keep",), description="Comma-separated tags, in any letter case. "
        "Retention never moves a run with one of these tags to the trash.",
    )  # fmt: skip

    autopsy: Annotated[bool, BeforeValidator(_on_or_off)] = Field(
        True, description="`on` or `off`. `on`: when a run diverges, a worker trains its fatal step again with instruments "
        "([autopsies](operations.md#autopsies)). Use the same value on every server and worker.",
    )  # fmt: skip

    @classmethod
    def from_environment(cls, **options: Any) -> Self:
        """The settings. Options that are not None override STABLESSM_* variables, and variables that are not empty override the
        defaults.

        Raises a ValueError that names the variable or option, its value and the allowed values.
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
    """The environment variable of a setting; None if only a command-line option sets it."""
    alias = Settings.model_fields[name].validation_alias
    return None if name in OPTIONS_ONLY else str(alias) if alias else PREFIX + name.upper()


def _refusal(error: ValidationError) -> str:
    """The first error as one line."""
    first = error.errors()[0]
    if first["type"] == "value_error":
        return str(first["ctx"]["error"])
    name, given = str(first["loc"][0]), str(first["input"])[:40]
    if (field := Settings.model_fields.get(name)) is None or not field.metadata:
        return f"{name}: {first['msg']}"
    limits = " to ".join(f"{getattr(limit, key):.0f}" for key in ("ge", "le") for limit in field.metadata if hasattr(limit, key))
    if first["type"] in ("greater_than_equal", "less_than_equal"):
        return f"{variable_of(name) or name} is {given}; allowed: {limits}"
    return f"{variable_of(name) or name} is {given!r}; allowed: {'whole ' * (field.annotation is int)}numbers from {limits}"


def make_private(folder: Path) -> None:
    """Create a folder that only its owner can read, whatever the umask. An existing folder is not changed."""
    if not folder.exists():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)  # the umask may have taken rights from its owner


def keep_private(data_dir: Path) -> str | None:
    """Create the data directory with mode 0700, or give an existing one this mode. Returns why that is impossible, else None.

    A folder that all users of the machine share, such as /tmp, keeps its mode.
    """
    try:
        make_private(data_dir)
        mode = stat.S_IMODE(data_dir.stat().st_mode)
        if not mode & (stat.S_IRWXG | stat.S_IRWXO):
            return None
        if mode & stat.S_ISVTX or data_dir == Path(data_dir.anchor):
            why = "many users share this folder; choose another data directory"
        else:
            data_dir.chmod(0o700)
            return None
    except OSError as error:
        why, mode = error.strerror or str(error), 0
    return f"the data directory {data_dir} cannot be made private{f' (mode {mode:o})' if mode else ''}: {why}"


def run_folder(data_dir: Path, run_id: int) -> Path:
    """The folder of a run's files: checkpoints, log, spool."""
    return data_dir / "runs" / str(run_id)


def check_store(url: str) -> str:
    """Returns the URL of a checkpoint store unchanged, or raises ValueError if its kind is not supported."""
    protocol, separator, place = url.partition("://")
    if not separator or protocol not in ("s3", "file") or not place.strip("/") or (protocol == "file" and place[0] != "/"):
        raise ValueError(f"STABLESSM_CHECKPOINT_STORE is {url[:60]!r}; allowed: s3://bucket/prefix and file:///folder")
    return url


def check_smtp_tls(tls: str) -> str:
    """Returns how the connection to the mail server is encrypted, or raises ValueError."""
    if tls not in SMTP_TLS:
        raise ValueError(f"STABLESSM_SMTP_TLS is {tls[:40]!r}; allowed: {', '.join(SMTP_TLS)}")
    return tls


def check_public_url(url: str) -> str:
    """Returns the public address without a slash at its end, or raises ValueError if it is not a plain http(s) address."""
    parts = urlsplit(url)
    plain = url.isascii() and url.isprintable() and not {" ", '"', "<", ">", "\\"} & set(url)
    if not plain or parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment or "@" in url:
        raise ValueError(f"STABLESSM_PUBLIC_URL is {url[:60]!r}; allowed: https://name or http://name, also with port and path")
    return url.rstrip("/")


def normalize_url(url: str) -> str:
    """The SQLAlchemy URL of a SQLite or PostgreSQL database; raises ValueError for any other URL."""
    scheme, separator, rest = url.partition("://")
    driver = {
        "sqlite": "sqlite",
        "sqlite+pysqlite": "sqlite",
        "postgres": "postgresql+psycopg",
        "postgresql": "postgresql+psycopg",
        "postgresql+psycopg": "postgresql+psycopg",
    }.get(scheme)
    if not separator or driver is None:
        raise ValueError(f"database URL starts with {scheme!r}; allowed: sqlite:/// and postgresql+psycopg://")
    if driver == "sqlite" and rest.lstrip("/").split("?")[0] in ("", ":memory:"):
        raise ValueError("the SQLite database must be a file, since several processes share it")
    return f"{driver}://{rest}"
