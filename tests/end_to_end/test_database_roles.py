"""On PostgreSQL, server and worker work with the roles of postgres-roles.sql, which allow only access to rows."""

from __future__ import annotations

import os
import shutil
import subprocess
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import make_url, select
from sqlalchemy.exc import ProgrammingError

from server.backup.archive import verify
from server.backup.create import backup
from server.database.connection import Database
from server.database.models import Base, User
from server.lifecycle import transitions as lifecycle
from stablessm_core.spec.config import RunConfig
from tests.installation import Installation

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "a-token-of-the-tests-0123456789"
BODY = {"task": {"name": "polynomial_memory", "length": 20}, "train": {"steps": 30, "batch_size": 4}}
SECONDS = 240.0  # time limit for a run of a few steps on a busy machine
ACCESS = ("tokens", "audit", "webhooks", "notifications", "silences", "ended_sessions", "users", "views")
pytestmark = [pytest.mark.spread, pytest.mark.slow, pytest.mark.postgres]


@dataclass
class Roles:
    """A migrated database with its URLs for the owner, a server and a worker."""

    owner: str
    server: str
    worker: str
    backup: str

    def apply(self) -> None:
        """Apply postgres-roles.sql as described at its beginning, with role names of this test."""
        urls = {kind: make_url(getattr(self, kind)) for kind in ("server", "worker", "backup")}
        names = [part for kind, url in urls.items() for part in ("--set", f"{kind}={url.username}")]
        environment = {**os.environ, **{f"{kind.upper()}_PASSWORD": str(url.password) for kind, url in urls.items()}}
        command = ["psql", *names, "--file", str(ROOT / "postgres-roles.sql"), libpq(self.owner)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr


def libpq(url: str) -> str:
    return make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)


@pytest.fixture
def roles(postgres_url: str, unavailable: Callable[[str], NoReturn]) -> Iterator[Roles]:
    if shutil.which("psql") is None:
        unavailable("no psql on the PATH")
    names = [f"stablessm_test_{kind}_{uuid.uuid4().hex[:12]}" for kind in ("server", "worker", "backup")]
    server, worker, reader = (
        make_url(postgres_url).set(username=name, password=uuid.uuid4().hex).render_as_string(hide_password=False)
        for name in names
    )
    made = Roles(postgres_url, server, worker, reader)
    try:
        made.apply()
        made.apply()  # safe to repeat
        yield made
    finally:
        with psycopg.connect(libpq(postgres_url), autocommit=True) as owner:
            for name in names:
                known = owner.execute("SELECT FROM pg_roles WHERE rolname = %s", [name]).fetchone()
                if known is not None:
                    owner.execute(sql.SQL("DROP OWNED BY {}").format(sql.Identifier(name)))
                    owner.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))


def test_server_and_worker_need_only_row_access(roles: Roles, data_dir: Path, free_port: int) -> None:
    here = Installation(data_dir, free_port, TOKEN)
    common = {"STABLESSM_TOKEN": TOKEN, "STABLESSM_DATA_DIR": str(data_dir)}
    try:
        here.environment = common | {"STABLESSM_DATABASE_URL": roles.server}
        here.start("serve", "--port", str(free_port))
        here.environment = common | {"STABLESSM_DATABASE_URL": roles.worker}
        here.start("worker")
        here.wait_until_ready()
        with here.client() as client:
            run = client.post("/api/runs", json=BODY).raise_for_status().json()
            assert here.wait_for_end(client, run["id"], SECONDS)["status"] == "finished"
            # every kind of access, from the submission of runs to reports about them
            sweep = client.post("/api/sweeps", json={"base": BODY, "grid": {"train.seed": [1, 2]}}).raise_for_status().json()
            endless = BODY | {"train": {"steps": 1_000_000, "batch_size": 4}}
            long = client.post("/api/runs", json=endless, params={"queue": "other"}).raise_for_status().json()
            here.wait_for_step(client, long["id"])
            assert client.post(f"/api/runs/{long['id']}/cancel").status_code in (200, 202)
            assert here.wait_for_end(client, long["id"], SECONDS)["status"] == "cancelled"
            bad = BODY | {"optimizer": {"lr": 100.0}}
            diverging = client.post("/api/runs", json=bad).raise_for_status().json()
            here.wait_for_end(client, diverging["id"], SECONDS)
            for one in sweep["runs"]:
                assert here.wait_for_end(client, one["id"], SECONDS)["status"] == "finished"
            client.patch(f"/api/runs/{run['id']}", json={"name": "renamed"}).raise_for_status()
            client.patch("/api/queues/other", json={"paused": True}).raise_for_status()
            token = client.post("/api/tokens", json={"name": "guest", "scope": "read"}).raise_for_status().json()
            hook = {"url": "https://8.8.8.8/hook", "events": ["run.failed"]}
            client.post("/api/webhooks", json=hook).raise_for_status()
            client.delete(f"/api/tokens/{token['id']}").raise_for_status()
            client.delete(f"/api/runs/{run['id']}").raise_for_status()
            here.wait("audit log", lambda: any(row["method"] == "DELETE" for row in client.get("/api/audit").json()["audit"]))
            for page in ("/metrics", "/readyz", "/api/workers", "/api/alerts", "/api/queues", "/"):
                client.get(page).raise_for_status()
        assert "permission denied" not in here.output(), here.output()
        assert "InsufficientPrivilege" not in here.output()
    finally:
        here.kill_all()


@pytest.mark.parametrize("who", ["server", "worker"])
def test_neither_role_can_change_the_schema_or_access_the_machine(roles: Roles, who: str) -> None:
    forbidden = [
        "DROP TABLE runs", "ALTER TABLE runs ADD COLUMN x int", "CREATE TABLE x (y int)", "CREATE TEMP TABLE x (y int)",
        "TRUNCATE runs CASCADE", "DROP INDEX ix_runs_queue", "CREATE SCHEMA x", "DROP SCHEMA public CASCADE",
        "UPDATE alembic_version SET version_num = '0001'", "DELETE FROM alembic_version", "CREATE ROLE x SUPERUSER",
        "ALTER ROLE CURRENT_USER SUPERUSER", "COPY (SELECT 1) TO PROGRAM 'true'", "COPY runs TO '/tmp/x'",
        "SELECT pg_read_file('/etc/passwd')", "SELECT setval('runs_id_seq', 1)", "CREATE DATABASE x",
        "CREATE FUNCTION f() RETURNS int LANGUAGE sql AS 'SELECT 1'", "CREATE EXTENSION lo", "DROP VIEW pg_roles",
    ]  # fmt: skip
    if who == "worker":
        forbidden += [f"SELECT * FROM {table}" for table in ACCESS] + [f"DELETE FROM {table}" for table in ACCESS]
        forbidden += ["DELETE FROM runs", "DELETE FROM sweeps", "INSERT INTO queues (name) VALUES ('x')"]
        forbidden += ["INSERT INTO tokens (name, scope, sha256, created_at) VALUES ('x', 'admin', 'x', 1)"]
    with psycopg.connect(libpq(getattr(roles, who)), autocommit=True) as connection:
        for statement in forbidden:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement)
        connection.execute("GRANT ALL ON runs TO PUBLIC")  # PostgreSQL warns but grants nothing
    with psycopg.connect(libpq(roles.owner)) as owner:
        rights = owner.execute("SELECT count(*) FROM information_schema.role_table_grants WHERE grantee = 'PUBLIC' "
                               "AND table_schema = 'public'").fetchone()  # fmt: skip
        assert rights == (0,)


def test_a_worker_respects_a_user_s_quota_but_cannot_read_user_names(roles: Roles) -> None:
    owner, worker = Database(roles.owner), Database(roles.worker)
    with owner.write() as session:
        session.add(User(id=3, name="alice", max_running=1, created_at=1.0))
        for _ in range(2):
            lifecycle.submit(session, RunConfig.model_validate(BODY), user_id=3)
    taken = []
    for _ in range(2):
        with worker.write() as session:
            taken.append(lifecycle.claim(session, "host:1:2", {"devices": ["cpu"]}))
    assert [claim is not None for claim in taken] == [True, False]
    with pytest.raises(ProgrammingError, match="permission denied"), worker.read() as session:
        session.execute(select(User.name)).all()
    owner.close()
    worker.close()


def test_only_the_owner_role_can_migrate(roles: Roles) -> None:
    for url in (roles.server, roles.worker):
        database = Database(url)
        try:
            with pytest.raises(ProgrammingError, match=r"must be owner|permission denied"):
                database.migrate("0004", lose=True)
            assert database.check_schema()
            database.migrate()  # has nothing to do
        finally:
            database.close()


def test_every_table_has_defined_privileges(roles: Roles) -> None:
    closed = {"worker": {*ACCESS, "searches", "rungs"}, "server": set()}
    with psycopg.connect(libpq(roles.owner)) as owner:
        for who in ("server", "worker"):
            name = make_url(getattr(roles, who)).username
            for table in Base.metadata.tables:
                (may,) = owner.execute("SELECT has_table_privilege(%s, %s, 'SELECT')", [name, table]).fetchone() or (None,)
                assert may is (table not in closed[who]), (
                    f"{who}, {table}: grant or deny access to this table in postgres-roles.sql"
                )


def test_a_read_only_role_can_make_a_backup(roles: Roles, data_dir: Path, tmp_path: Path) -> None:
    owner, reader = Database(roles.owner), Database(roles.backup)
    with owner.write() as session:
        lifecycle.submit(session, RunConfig(**BODY))
    file, manifest = backup(reader, data_dir, tmp_path / "one.backup", lambda _: None)
    assert verify(file) == manifest
    assert {table.name: table.rows for table in manifest.tables}["runs"] == 1
    with pytest.raises(ProgrammingError, match="permission denied"), reader.write() as session:
        lifecycle.submit(session, RunConfig(**BODY))
    owner.close()
    reader.close()
