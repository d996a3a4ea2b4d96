"""What all tests share: markers by rule, fresh databases, a Redis of their own, data sets, a browser.

A missing service skips its tests; with REQUIRE_SERVICES=1 it fails them. `unavailable` is the only place that decides.
"""

from __future__ import annotations

import logging
import os
import random
import shutil
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any, NoReturn

import hypothesis
import psutil
import psycopg
import pytest
import redis
from psycopg import sql
from sqlalchemy import make_url

# Before any test imports torch: several threads per tiny tensor only slow the tests down, and each other.
for _variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")
# The few kernels that a test compiles are not worth processes that each import torch first.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
_data_named = os.environ.get("STABLESSM_DATA", os.environ.get("DATA_OF_TESTS"))
if _data_named:
    os.environ["DATA_OF_TESTS"] = _data_named  # for xdist's processes: they get what this one leaves
# The developer's own settings must not leak into the tests.
for _variable in [name for name in os.environ if name.startswith("STABLESSM_")]:
    del os.environ[_variable]

collect_ignore = ["references"]  # needs what only `make references` installs

ROOT = Path(__file__).resolve().parent.parent
POSTGRES_URL = os.environ.get("TEST_POSTGRES_URL", "postgresql+psycopg://127.0.0.1:5432/postgres")
REDIS_URL = os.environ.get("TEST_REDIS_URL", "redis://127.0.0.1:6379")
REDIS_OWNER_KEY = "stablessm-tests-owner"
CHROMIUM_ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


# Markers that follow from where a test lies and what it uses; `make check` leaves out everything that carries one of them.
SLOW_FOLDERS = {"chaos", "end_to_end", "browser", "live", "backup", "access", "http", "verdict"}
SLOW_FILES = {
    *("test_checkpoint_uploads", "test_forks"),
    *("test_attack", "test_cli", "test_compaction", "test_delivery", "test_demo", "test_dependency_audit", "test_errors"),
    *("test_imports", "test_javascript", "test_migrations", "test_parent_death", "test_plug_in_tasks", "test_secrets"),
    *("test_train", "test_two_versions", "test_wakeups", "test_webhooks"),
    # many small ones that take long together
    *("test_client", "test_client_coverage", "test_client_frames", "test_derivatives", "test_following", "test_fused"),
    *("test_fuzz", "test_layers", "test_monitoring", "test_reparameterization", "test_scan_peers", "test_scan_transforms"),
    *("test_scan_edges", "test_step", "test_sweeps", "test_task_data", "test_tasks", "test_verdicts", "test_warnings"),
}
MARKER_OF_FIXTURE = {
    "_postgres": "postgres",
    "_redis_database": "redis",
    "chromium": "browser",
    "station": "slow",  # a real worker
    "receiver": "slow",  # waits for a webhook
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Adds the markers, and puts first what takes long: of several processes none is left with a long file at the end."""
    for item in items:
        if item.path.stem in SLOW_FILES or not SLOW_FOLDERS.isdisjoint(item.path.relative_to(ROOT).parts):
            item.add_marker("slow")
        for fixture in MARKER_OF_FIXTURE.keys() & set(getattr(item, "fixturenames", ())):
            item.add_marker(MARKER_OF_FIXTURE[fixture])
    if (one_of := int(os.environ.get("ONE_TEST_OF", "1"))) > 1:
        by_file = groupby(items, key=lambda item: item.path)  # see tests/core/scan/test_scan_interpreter.py
        items[:] = [item for _, of_file in by_file for item in list(of_file)[::one_of]]
    long_files = {item.path for item in items if item.get_closest_marker("slow") or item.get_closest_marker("interpreter")}
    items.sort(key=lambda item: item.path not in long_files)


# A machine that is busy may stop for seconds anywhere: how long an example takes judges nothing here. Where a change is judged,
# the same examples every time; everywhere else new ones are looked for.
_unhurried: dict[str, Any] = {"deadline": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}
hypothesis.settings.register_profile("searching", **_unhurried)
hypothesis.settings.register_profile("judged", derandomize=True, database=None, **_unhurried)
hypothesis.settings.load_profile("judged" if os.environ.get("REQUIRE_SERVICES") == "1" else "searching")


def _unavailable(reason: str) -> NoReturn:
    if os.environ.get("REQUIRE_SERVICES") == "1":
        pytest.fail(f"{reason} (REQUIRE_SERVICES=1)", pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def unavailable() -> Callable[[str], NoReturn]:
    """unavailable(reason) skips the test, or fails it when REQUIRE_SERVICES=1."""
    return _unavailable


@pytest.fixture(scope="session")
def services_required() -> bool:
    return os.environ.get("REQUIRE_SERVICES") == "1"


@pytest.fixture(autouse=True)
def _no_log_handler_stays() -> Iterator[None]:
    """The service's logging, where a test started it, writes to a stream that is closed after the test."""
    yield
    root = logging.getLogger()
    root.handlers = [handler for handler in root.handlers if type(handler) is not logging.StreamHandler] or [
        logging.NullHandler()
    ]


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """An empty state directory, not yet created: the product makes it."""
    return tmp_path / "state"


@pytest.fixture(scope="session")
def data_root() -> Path:
    """Folder of the real data sets: STABLESSM_DATA, which must then exist, or shared/data in or beside the checkout."""
    if _data_named:
        if not Path(_data_named).is_dir():
            pytest.fail(f"STABLESSM_DATA={_data_named} is not a directory", pytrace=False)
        return Path(_data_named).resolve()
    for place in (ROOT / "shared" / "data", ROOT.parent / "shared" / "data"):
        if place.is_dir():
            return place
    pytest.skip("no data sets: set STABLESSM_DATA to a folder with mnist/ and tinyshakespeare/")


@pytest.fixture
def free_port() -> int:
    """A TCP port on 127.0.0.1 that nobody uses and that no outgoing connection is given: those come from 32768 upwards."""
    return unused_port()


@pytest.fixture
def another_free_port() -> int:
    """A second one, for a test with two servers."""
    return unused_port()


def unused_port() -> int:
    choice = random.SystemRandom()  # hypothesis sets the seed of the other one, so that two runs would choose alike
    while True:
        port = choice.randrange(12_000, 32_000)
        with socket.socket() as probe:
            if port not in _ports_given and probe.connect_ex(("127.0.0.1", port)) != 0:
                _ports_given.add(port)
                return port


_ports_given: set[int] = set()


# Databases: migrated once per session, then copied, because a copy costs milliseconds and a migration does not.


@pytest.fixture(scope="session")
def _sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sqlite") / "template.db"
    _migrate(f"sqlite:///{path}")
    return path


@pytest.fixture
def empty_sqlite_url(tmp_path: Path) -> str:
    """A SQLite database without tables."""
    return f"sqlite:///{tmp_path / 'empty.db'}"


@pytest.fixture
def sqlite_url(tmp_path: Path, _sqlite_template: Path) -> str:
    """A SQLite database of this test's own, migrated."""
    path = tmp_path / "stablessm.db"
    for file in _sqlite_template.parent.glob(f"{_sqlite_template.name}*"):  # -wal and -shm too, if they are still there
        shutil.copy(file, path.with_name(file.name.replace(_sqlite_template.name, path.name)))  # with its rights
    return f"sqlite:///{path}"


@pytest.fixture(scope="session")
def _postgres() -> Iterator[psycopg.Connection]:
    try:
        connection = psycopg.connect(_libpq(POSTGRES_URL), autocommit=True, connect_timeout=30)
    except psycopg.OperationalError as error:
        _unavailable(f"PostgreSQL at {POSTGRES_URL} (TEST_POSTGRES_URL): {str(error).strip()}")
    with connection:
        yield connection


@pytest.fixture(scope="session")
def _postgres_template(_postgres: psycopg.Connection) -> Iterator[str]:
    with _new_database(_postgres) as url:
        _migrate(url)
        yield make_url(url).database or ""


@pytest.fixture
def empty_postgres_url(_postgres: psycopg.Connection) -> Iterator[str]:
    """A PostgreSQL database without tables, dropped after the test."""
    with _new_database(_postgres) as url:
        yield url


@pytest.fixture(scope="session")
def _postgres_copies(_postgres_template: str) -> Iterator[Callable[[], AbstractContextManager[str]]]:
    """Gives a migrated database. The next one is copied, and those that are done with are dropped, while the tests go on."""
    done: list[Future[None]] = []
    with psycopg.connect(_libpq(POSTGRES_URL), autocommit=True) as server, ThreadPoolExecutor(1) as aside:
        ahead = [aside.submit(_create_database, server, _postgres_template)]

        @contextmanager
        def copy() -> Iterator[str]:
            ahead.append(aside.submit(_create_database, server, _postgres_template))
            name = ahead.pop(0).result()
            try:
                yield _url_of(name)
            finally:
                done.append(aside.submit(_drop_database, server, name))

        yield copy
        done.append(aside.submit(_drop_database, server, ahead[0].result()))
    for dropped in done:
        dropped.result()


@pytest.fixture
def postgres_url(_postgres_copies: Callable[[], AbstractContextManager[str]]) -> Iterator[str]:
    """A PostgreSQL database of this test's own, migrated, dropped after the test."""
    with _postgres_copies() as url:
        yield url


@pytest.fixture(scope="module")
def module_postgres_url(_postgres: psycopg.Connection) -> Iterator[str]:
    """A PostgreSQL database without tables that the tests of one module share."""
    with _new_database(_postgres) as url:
        yield url


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def database_url(request: pytest.FixtureRequest) -> str:
    """A migrated database of this test's own, on both engines in turn."""
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def empty_database_url(request: pytest.FixtureRequest) -> str:
    """A database without tables, on both engines in turn."""
    return str(request.getfixturevalue(f"empty_{request.param}_url"))


def _migrate(url: str) -> None:
    from server.database.connection import Database

    database = Database(url)
    try:
        database.migrate()
    finally:
        database.close()


@contextmanager
def _new_database(server: psycopg.Connection) -> Iterator[str]:
    """URL of a new database without tables, dropped at the end."""
    name = _create_database(server, None)
    try:
        yield _url_of(name)
    finally:
        _drop_database(server, name)


def _create_database(server: psycopg.Connection, template: str | None) -> str:
    name = f"stablessm_test_{uuid.uuid4().hex[:12]}"
    copied = sql.SQL(" TEMPLATE {}").format(sql.Identifier(template)) if template else sql.SQL("")
    _when_unused(server, sql.SQL("CREATE DATABASE {}{}").format(sql.Identifier(name), copied))
    return name


def _drop_database(server: psycopg.Connection, name: str) -> None:
    """Connections that are still open included."""
    _when_unused(server, sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))


def _url_of(name: str) -> str:
    return make_url(POSTGRES_URL).set(database=name).render_as_string(hide_password=False)


def _when_unused(server: psycopg.Connection, statement: sql.Composed) -> None:
    """Execute it once nobody is connected to the database it is about: a connection lives on for a while after it was closed."""
    deadline = time.monotonic() + 60
    while True:
        try:
            server.execute(statement)
        except psycopg.errors.ObjectInUse:
            if time.monotonic() > deadline:
                raise
        else:
            return


def _libpq(url: str) -> str:
    return make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)


# Redis: a numbered database that was empty when we took it; nobody else's keys are ever flushed.


@pytest.fixture(scope="session")
def _redis_database() -> Iterator[str]:
    try:
        count = int(redis.Redis.from_url(REDIS_URL, socket_connect_timeout=30).config_get("databases")["databases"])
    except redis.exceptions.RedisError as error:
        _unavailable(f"Redis at {REDIS_URL} (TEST_REDIS_URL): {error}")
    base = REDIS_URL.partition("?")[0].rstrip("/")
    base = base if base.count("/") == 2 else base.rpartition("/")[0]
    for number in range(count - 1, 0, -1):
        url = f"{base}/{number}"
        with redis.Redis.from_url(url) as connection:
            if _take(connection):
                try:
                    yield url
                finally:
                    connection.flushdb()
                return
    _unavailable(f"no empty numbered database in Redis at {REDIS_URL}")


def _take(connection: redis.Redis) -> bool:
    """True when the database is ours now: it was empty, or left behind by a test process of this machine that is gone."""
    with connection.pipeline() as together:
        together.watch(REDIS_OWNER_KEY)  # another test process may be looking at the same moment: one of the two gets it
        owner = together.get(REDIS_OWNER_KEY)
        if owner is not None:
            host, _, pid = owner.decode().rpartition(":")
            if host != socket.gethostname() or psutil.pid_exists(int(pid)):
                return False
        elif together.dbsize():
            return False
        together.multi()
        _empty_in(together)
        try:
            together.execute()
        except redis.exceptions.WatchError:
            return False
    return True


@pytest.fixture
def redis_url(_redis_database: str) -> Iterator[str]:
    """An empty Redis database of this test's own."""
    yield _redis_database
    _empty(_redis_database)


@pytest.fixture(scope="module")
def module_redis_url(_redis_database: str) -> Iterator[str]:
    """An empty Redis database that the tests of one module share."""
    yield _redis_database
    _empty(_redis_database)


def _empty(url: str) -> None:
    from server.runs.worker_wakeups import _sender

    _sender(url).wait()  # a wake-up of this test must not arrive in the next one's database
    with redis.Redis.from_url(url) as connection, connection.pipeline() as together:
        _empty_in(together)
        together.execute()


def _empty_in(transaction: redis.client.Pipeline) -> None:
    """Everything goes but our mark, in one transaction: without the mark another test process could take the database."""
    transaction.flushdb()
    transaction.set(REDIS_OWNER_KEY, f"{socket.gethostname()}:{os.getpid()}")


# Browser and node


@pytest.fixture(scope="session")
def chromium() -> str:
    """Path of the Chromium executable: CHROMIUM_PATH, or the one on the PATH."""
    found = os.environ.get("CHROMIUM_PATH") or shutil.which("chromium") or shutil.which("chromium-browser")
    return found or _unavailable("no chromium executable on the PATH (or in CHROMIUM_PATH)")


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[object]:
    """A real Chromium driven by Playwright's sync API (module scope: asyncio.run is impossible while it is open)."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=CHROMIUM_ARGUMENTS, timeout=180_000)
        try:
            yield browser
        finally:
            browser.close()


@pytest.fixture(scope="session")
def node() -> str:
    """Path of the node executable, for the pure helpers of the pages' scripts."""
    return shutil.which("node") or _unavailable("no node executable on the PATH")
