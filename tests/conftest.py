"""Fixtures and hooks for all tests: markers, new databases, an empty Redis database, data sets and a browser.

If a service is missing, its tests are skipped; with REQUIRE_SERVICES=1 they fail. Only `unavailable` makes this decision.
"""

from __future__ import annotations

import logging
import os
import random
import shutil
import signal
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from functools import cache
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
from xdist.scheduler import LoadScopeScheduling

# A test run in the background ignores Ctrl-C, and so would the programs that the tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Set before any test imports torch: with such small tensors, several threads per operation only slow the tests down.
for _variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")
# A test compiles few kernels, so separate compile processes, which must import torch first, do not pay off.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
_data_named = os.environ.get("STABLESSM_DATA", os.environ.get("DATA_OF_TESTS"))
if _data_named:
    os.environ["DATA_OF_TESTS"] = _data_named  # the processes of xdist inherit this variable
# The developer's own settings must not leak into the tests.
for _variable in [name for name in os.environ if name.startswith("STABLESSM_")]:
    del os.environ[_variable]

collect_ignore = ["references"]  # these tests need packages that only `make references` installs

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


# Fixtures that make a test slow or require a service. All other markers are set in the test files.
MARKER_OF_FIXTURE = {
    "_postgres": "postgres",
    "_redis_database": "redis",
    "chromium": "browser",
    "station": "slow",  # a real worker
    "receiver": "slow",  # waits for a webhook
}


CORE, CLIENT = ROOT / "tests" / "core", ROOT / "tests" / "core" / "client"

HEAVY_SHARE = 0.8  # all files with browsers and whole installations start within this fraction of the run


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Add the markers that follow from fixtures and folders, apply ONE_TEST_OF, and let long files start early.

    The core depends on no other room, so its slow tests form a long suite. Only its client needs a server.
    """
    for item in items:
        for fixture in MARKER_OF_FIXTURE.keys() & set(getattr(item, "fixturenames", ())):
            item.add_marker(MARKER_OF_FIXTURE[fixture])
        if item.get_closest_marker("slow") and CORE in item.path.parents and CLIENT not in item.path.parents:
            item.add_marker("long")
    if (one_of := int(os.environ.get("ONE_TEST_OF", "1"))) > 1:
        by_file = groupby(items, key=lambda item: item.path)  # see tests/core/scan/test_scan_interpreter.py
        items[:] = [item for _, of_file in by_file for item in list(of_file)[::one_of]]
    turns = _turns(items)
    items.sort(key=lambda item: turns[item.path])


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return FilesOrTests(config, log)


class FilesOrTests(LoadScopeScheduling):
    """Assigns all tests of a file to one process, because they share their setup, unless the file is marked `spread`."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return nodeid if _is_spread(file) else file


@cache
def _is_spread(file: str) -> bool:
    return "pytest.mark.spread" in (ROOT / file).read_text()  # reads the text, because the scheduling process imports no tests


def _turns(items: list[pytest.Item]) -> dict[Path, float]:
    """Sort key of each file: files with browsers and whole installations are spread evenly over the first part of the run.

    If these files all started first, five installations would start at the same time on two cores. If one of them started last,
    the other processes would have to wait for it.
    """
    files: tuple[list[Path], list[Path]] = ([], [])
    for path, of_file in groupby(items, key=lambda item: item.path):
        heavy = {"browser", "end_to_end", "worker"} & set(path.relative_to(ROOT).parts)
        slow = any(item.get_closest_marker("slow") or item.get_closest_marker("long") for item in of_file)
        files[bool(heavy and slow)].append(path)
    others, heavies = files
    turns = {path: number / len(others) for number, path in enumerate(others)}
    return turns | {path: HEAVY_SHARE * number / len(heavies) for number, path in enumerate(heavies)}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests that use a database run on SQLite. Tests marked `both_engines` run on SQLite and on PostgreSQL."""
    engines: list[Any] = ["sqlite"]
    if metafunc.definition.get_closest_marker("both_engines"):
        engines.append(pytest.param("postgres", marks=pytest.mark.postgres))
    for fixture in ("database_url", "empty_database_url"):
        if fixture in metafunc.fixturenames:
            metafunc.parametrize(fixture, engines, indirect=True)


# There is no time limit per example, because a busy machine may pause a test for seconds. With REQUIRE_SERVICES=1, hypothesis
# uses the same examples in every run; otherwise it searches for new ones.
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
    """Removes the log handlers that a test has added, because they write to a stream that is closed after the test."""
    yield
    root = logging.getLogger()
    root.handlers = [handler for handler in root.handlers if type(handler) is not logging.StreamHandler] or [
        logging.NullHandler()
    ]


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """Path of a state directory that does not exist yet, because the product creates it."""
    return tmp_path / "state"


@pytest.fixture(scope="session")
def data_root() -> Path:
    """Folder of the real data sets: STABLESSM_DATA, which must exist if it is set, or shared/data in or beside the checkout."""
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
    """A free TCP port on 127.0.0.1. It is below 32768, so the kernel does not use it for outgoing connections."""
    return unused_port()


@pytest.fixture
def another_free_port() -> int:
    """A second free port, for a test with two servers."""
    return unused_port()


def unused_port() -> int:
    choice = random.SystemRandom()  # hypothesis seeds the global generator, so two test runs would choose the same port
    while True:
        port = choice.randrange(12_000, 32_000)
        with socket.socket() as probe:
            if port not in _ports_given and probe.connect_ex(("127.0.0.1", port)) != 0:
                _ports_given.add(port)
                return port


_ports_given: set[int] = set()


# Databases: a template is migrated once per session and then copied, because a copy is much faster than a migration.


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
    """A new migrated SQLite database for this test."""
    path = tmp_path / "stablessm.db"
    for file in _sqlite_template.parent.glob(f"{_sqlite_template.name}*"):  # includes the -wal and -shm files if they exist
        shutil.copy(file, path.with_name(file.name.replace(_sqlite_template.name, path.name)))  # keeps the file mode
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
    """Provides migrated databases. The next database is copied in the background while a test runs.

    All databases are dropped at the end of the session, because DROP DATABASE makes PostgreSQL write all dirty pages to disk,
    including those of other tests.
    """
    used: list[str] = []
    with psycopg.connect(_libpq(POSTGRES_URL), autocommit=True) as server, ThreadPoolExecutor(1) as aside:
        ahead = [aside.submit(_create_database, server, _postgres_template)]

        @contextmanager
        def copy() -> Iterator[str]:
            ahead.append(aside.submit(_create_database, server, _postgres_template))
            name = ahead.pop(0).result()
            used.append(name)
            yield _url_of(name)

        yield copy
        for name in [*used, ahead[0].result()]:
            _drop_database(server, name)


@pytest.fixture
def postgres_url(_postgres_copies: Callable[[], AbstractContextManager[str]]) -> Iterator[str]:
    """A new migrated PostgreSQL database for this test. It is dropped at the end of the session."""
    with _postgres_copies() as url:
        yield url


@pytest.fixture(scope="module")
def module_postgres_url(_postgres: psycopg.Connection) -> Iterator[str]:
    """A PostgreSQL database without tables that the tests of one module share."""
    with _new_database(_postgres) as url:
        yield url


@pytest.fixture
def database_url(request: pytest.FixtureRequest) -> str:
    """A new migrated database for this test. `pytest_generate_tests` chooses its engine."""
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture
def empty_database_url(request: pytest.FixtureRequest) -> str:
    """A database without tables. `pytest_generate_tests` chooses its engine."""
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
    """URL of a new database without tables. The database is dropped when the context ends."""
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
    """Drop the database, and close connections that are still open."""
    _when_unused(server, sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))


def _url_of(name: str) -> str:
    return make_url(POSTGRES_URL).set(database=name).render_as_string(hide_password=False)


def _when_unused(server: psycopg.Connection, statement: sql.Composed) -> None:
    """Retry a statement until its database has no connections, because the server ends a closed connection with a delay."""
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


# Redis: a numbered database that was empty when the tests reserved it. Keys of other programs are never deleted.


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
    """Reserve the database and return True if it was empty or belonged to a test process of this machine that has ended."""
    with connection.pipeline() as together:
        together.watch(REDIS_OWNER_KEY)  # if two test processes check at the same moment, only one of them gets the database
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
    """An empty Redis database that only this test uses."""
    yield _redis_database
    _empty(_redis_database)


@pytest.fixture(scope="module")
def module_redis_url(_redis_database: str) -> Iterator[str]:
    """An empty Redis database that the tests of one module share."""
    yield _redis_database
    _empty(_redis_database)


def _empty(url: str) -> None:
    from server.lifecycle.worker_wakeups import _sender

    _sender(url).wait()  # so that no wake-up of this test reaches the next test
    with redis.Redis.from_url(url) as connection, connection.pipeline() as together:
        _empty_in(together)
        together.execute()


def _empty_in(transaction: redis.client.Pipeline) -> None:
    """Delete all keys, and set the owner key again, without which another test process could reserve the database."""
    transaction.flushdb()
    transaction.set(REDIS_OWNER_KEY, f"{socket.gethostname()}:{os.getpid()}")


# Browser and node


@pytest.fixture(scope="session")
def chromium() -> str:
    """Path of the Chromium executable: CHROMIUM_PATH, or else chromium or chromium-browser on the PATH."""
    found = os.environ.get("CHROMIUM_PATH") or shutil.which("chromium") or shutil.which("chromium-browser")
    return found or _unavailable("no chromium executable on the PATH (or in CHROMIUM_PATH)")


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[object]:
    """A real Chromium, driven by Playwright's sync API. While it is open, asyncio.run is impossible, so it has module scope."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=CHROMIUM_ARGUMENTS, timeout=180_000)
        try:
            yield browser
        finally:
            browser.close()


@pytest.fixture(scope="session")
def node() -> str:
    """Path of the node executable, which runs the pure functions of the browser scripts."""
    return shutil.which("node") or _unavailable("no node executable on the PATH")
