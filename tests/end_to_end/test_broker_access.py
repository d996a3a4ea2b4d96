"""Redis as docker-compose.yml starts it: its only user can only exchange wake-ups, and only JSON messages are decoded."""

from __future__ import annotations

import base64
import json
import os
import pickle
import re
import shutil
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import httpx
import pytest
import redis
import yaml

from tests.installation import Installation

ROOT = Path(__file__).resolve().parents[2]
SERVICE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["redis"]
PASSWORD = "password-of-the-broker-0123456789"
TOKEN = "a-token-of-the-tests-0123456789"
QUEUE = "stablessm:stablessm"
BODY = {"task": {"name": "polynomial_memory", "length": 20}, "train": {"steps": 30, "batch_size": 4}}
RULE = re.compile(r"~stablessm:\S*[^>\"`]*?\+publish")
pytestmark = [pytest.mark.spread, pytest.mark.long, pytest.mark.redis, pytest.mark.postgres]


class Broker:
    """A Redis started by the command of docker-compose.yml, with an additional user `watcher` for this test."""

    def __init__(self, folder: Path, port: int) -> None:
        self.port = port
        self.users = folder / "users.acl"
        shell, option, program = SERVICE["command"]
        program = program.replace("$$", "$").replace("docker-entrypoint.sh ", "").replace("/tmp/users.acl", str(self.users))
        started = f'echo "user watcher on >{PASSWORD} ~* &* +@all" >> {self.users}; exec redis-server '
        program = program.replace("exec redis-server ", f"{started}--port {port} --bind 127.0.0.1 --dir {folder} ")
        self.environment = {"PATH": os.environ["PATH"], "REDISCLI_AUTH": PASSWORD, "REDISCLI_HISTFILE": "/dev/null"}
        self.process = subprocess.Popen([shell, option, program], env=self.environment, stdout=subprocess.DEVNULL)

    def url(self, user: str = "stablessm") -> str:
        return f"redis://{user}:{PASSWORD}@127.0.0.1:{self.port}/0"

    def client(self, user: str = "stablessm") -> redis.Redis:
        return redis.Redis.from_url(self.url(user), socket_timeout=120)

    def healthy(self) -> bool:
        """Whether the health check of docker-compose.yml succeeds."""
        kind, command = SERVICE["healthcheck"]["test"]
        assert kind == "CMD-SHELL"
        command = command.replace("redis-cli ", f"redis-cli -p {self.port} ")
        return subprocess.run(["sh", "-c", command], env=self.environment, capture_output=True, timeout=120).returncode == 0

    def refusals(self) -> list[str]:
        """The commands that the access rules refused."""
        with self.client("watcher") as watcher:
            return [f"{entry[b'reason']}: {entry[b'object']}" for entry in watcher.execute_command("ACL", "LOG")]

    def calls(self, command: str) -> int:
        with self.client("watcher") as watcher:
            return int(watcher.info("commandstats").get(f"cmdstat_{command}", {"calls": 0})["calls"])


def until(holds: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture
def broker(tmp_path: Path, free_port: int, unavailable: Callable[[str], NoReturn]) -> Iterator[Broker]:
    if shutil.which("redis-server") is None or shutil.which("redis-cli") is None:
        unavailable("no redis-server on the PATH")
    started = Broker(tmp_path, free_port)
    try:
        until(started.healthy)
        yield started
    finally:
        started.process.terminate()
        started.process.wait(60)


@pytest.fixture
def installation(data_dir: Path, broker: Broker, empty_postgres_url: str) -> Iterator[Installation]:
    """A server and a worker that know only the password of the only user."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    made = Installation(data_dir, port, TOKEN)
    made.environment = {"STABLESSM_BROKER_URL": broker.url(), "STABLESSM_TOKEN": TOKEN, "STABLESSM_DATA_DIR": str(data_dir)}
    made.environment["STABLESSM_DATABASE_URL"] = empty_postgres_url
    try:
        assert made.start("migrate").wait(120) == 0, made.output()
        made.start("serve", "--port", str(port))
        made.start("worker")
        made.wait_until_ready()
        yield made
    finally:
        made.kill_all()


def test_server_and_worker_run_with_the_restricted_redis_user(broker: Broker, installation: Installation) -> None:
    with installation.client() as client:
        installation.wait("live wake-ups", lambda: client.get("/readyz").json()["checks"]["live"] == "push")
        run = client.post("/api/runs", json=BODY).raise_for_status().json()
        assert installation.wait_for_end(client, run["id"])["status"] == "finished"
        until(lambda: broker.calls("hdel") >= 1)  # a worker has acknowledged a wake-up
        until(lambda: broker.calls("publish") >= 1)
    assert broker.calls("lpush") >= 1
    assert broker.refusals() == []
    assert PASSWORD not in installation.output()


def test_the_restricted_redis_user_can_restore_an_unacknowledged_message(broker: Broker) -> None:
    """Tests the commands that are needed only for the message of a dead worker."""
    from server.lifecycle.worker_wakeups import celery_app, wake_workers

    wake_workers(broker.url())
    with broker.client() as client:
        until(lambda: client.llen(QUEUE) == 1)
    # The state after a worker was killed between receiving a message and acknowledging it.
    with broker.client("watcher") as watcher:
        (taken,) = watcher.lrange(QUEUE, 0, -1)
        watcher.delete(QUEUE)
        watcher.hset("stablessm:unacked", "tag", json.dumps([json.loads(taken), "", "stablessm"]))
        watcher.zadd("stablessm:unacked_index", {"tag": 1.0})
        with celery_app(broker.url()).connection_for_read() as connection:
            connection.default_channel.qos.restore_visible(interval=1)
        assert watcher.llen(QUEUE) == 1
        assert watcher.hlen("stablessm:unacked") == watcher.zcard("stablessm:unacked_index") == 0
    assert broker.refusals() == []


@pytest.mark.parametrize(
    "command",
    ["KEYS *", "SCAN 0", "FLUSHALL", "FLUSHDB", "CONFIG GET *", "CONFIG SET dir /tmp", "REPLICAOF 10.0.0.1 6379", "MODULE LIST",
     "SAVE", "SHUTDOWN", "ACL LIST", "ACL SETUSER x on nopass +@all", "CLIENT LIST", "MONITOR", "FUNCTION LIST",
     "EVAL return(1) 0", "SCRIPT FLUSH", "SWAPDB 0 1", "GET other", "SET other 1", "DEL other", "LPUSH other 1", "BRPOP other 1",
     "SUBSCRIBE other", "PUBLISH other 1", "PUBLISH stablessm:other 1", "PSUBSCRIBE *", "MIGRATE 10.0.0.1 6379 stablessm:x 0 1"],
)  # fmt: skip
def test_the_restricted_redis_user_may_run_no_other_command(broker: Broker, command: str) -> None:
    with broker.client() as client:
        connection = client.connection_pool.get_connection()
        connection.send_command(*command.split())
        with pytest.raises(redis.exceptions.NoPermissionError):
            connection.read_response()


def test_a_script_has_no_more_rights_than_its_user(broker: Broker) -> None:
    with broker.client() as client:
        sha = client.script_load("return redis.call('set', KEYS[1], '1')")
        with pytest.raises(redis.exceptions.ResponseError):
            client.evalsha(sha, 1, "other")


def test_redis_rejects_every_other_user_and_password(broker: Broker) -> None:
    for who in ("", "default:@", f":{PASSWORD}@", "stablessm:wrong@", "stablessm:@"):
        with (
            redis.Redis.from_url(f"redis://{who}127.0.0.1:{broker.port}/0".replace("//127", "//127")) as client,
            pytest.raises((redis.exceptions.AuthenticationError, redis.exceptions.ResponseError)),
        ):
            client.ping()
    assert PASSWORD not in broker.users.read_text().partition("user watcher")[0]


def test_the_documented_redis_rules_match_the_compose_file() -> None:
    written, documented = (
        RULE.findall(text) for text in (SERVICE["command"][2].replace("\\\n", ""), (ROOT / "docs" / "security.md").read_text())
    )
    assert len(written) == len(documented) == 1
    assert written[0].split() == documented[0].split()


class Trap:
    """An object whose unpickling creates a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def message(body: bytes, content_type: str, encoding: str = "binary") -> str:
    """A message in the format in which Celery puts it into the queue."""
    number = str(uuid.uuid4())
    delivery = {"exchange": "", "routing_key": "stablessm"}
    return json.dumps({
        "body": base64.b64encode(body).decode(), "content-type": content_type, "content-encoding": encoding,
        "headers": {"lang": "py", "task": "stablessm.wake", "id": number, "argsrepr": "()", "kwargsrepr": "{}"},
        "properties": {"correlation_id": number, "delivery_mode": 2, "delivery_info": delivery, "priority": 0,
                       "body_encoding": "base64", "delivery_tag": str(uuid.uuid4())},
    })  # fmt: skip


def test_a_pickle_in_the_queue_is_discarded_without_unpickling(
    broker: Broker, installation: Installation, tmp_path: Path
) -> None:
    trap = tmp_path / "sprung"
    opens = pickle.dumps(Trap(trap))
    pickle.loads(opens)  # unpickling works and creates the file
    trap.unlink()
    bodies = [
        message(opens, "application/x-python-serialize"), message(opens, "application/data"), message(opens, "application/json"),
        message(b"!!python/object/apply:os.system ['true']", "application/x-yaml", "utf-8"),
        message(b"[[], {}, {}]", "application/json", "utf-8").replace("stablessm.wake", "celery.backend_cleanup"),
        message(b'[["x", {"__proto__": 1}], {"code": "1"}, {}]', "application/json", "utf-8"), "{", "null", "",
    ]  # fmt: skip
    with broker.client("watcher") as watcher:
        for body in bodies:
            watcher.lpush(QUEUE, body)
        installation.wait("empty queue", lambda: watcher.llen(QUEUE) == 0)
    taken = broker.calls("brpop")
    with installation.client() as client:
        run = client.post("/api/runs", json=BODY).raise_for_status().json()
        assert installation.wait_for_end(client, run["id"])["status"] == "finished"
    until(lambda: broker.calls("brpop") > taken)  # the worker is still listening
    assert not trap.exists()
    assert all(process.poll() is None for process in installation.processes[1:]), installation.output()
    assert httpx.get(f"{installation.url}/healthz", timeout=120).status_code == 200
