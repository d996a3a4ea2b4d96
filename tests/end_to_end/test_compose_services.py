"""Each service of docker-compose.yml starts with its command and environment, on a real PostgreSQL and Redis."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.installation import Installation

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
TOKEN = "a-token-of-the-tests-0123456789"
pytestmark = [pytest.mark.slow, pytest.mark.postgres, pytest.mark.redis]


@pytest.fixture
def installation(
    data_dir: Path, free_port: int, empty_postgres_url: str, redis_url: str, tmp_path: Path
) -> Iterator[Installation]:
    """An installation without processes. `begin` starts services with this test's PostgreSQL, Redis and port."""
    made = Installation(data_dir, free_port, TOKEN)
    made.environment = {"DATABASE": empty_postgres_url, "BROKER": redis_url, "STATE": str(data_dir), "DATA": str(tmp_path)}
    try:
        yield made
    finally:
        made.kill_all()


def command_of(service: str) -> list[str]:
    """The command of the service in docker-compose.yml, or else that of its stage in the Dockerfile."""
    if "command" in COMPOSE[service]:
        return list(COMPOSE[service]["command"])
    stage = COMPOSE[service]["build"]["target"]
    text = (ROOT / "Dockerfile").read_text().partition(f" AS {stage}\n")[2].partition("\nFROM ")[0]
    command: list[str] = json.loads(re.findall(r"^CMD (\[.*\])$", text, flags=re.MULTILINE)[-1])
    return command


def environment_of(service: str, here: Installation) -> dict[str, str]:
    """The service's environment, with this test's addresses instead of those of the containers."""
    environment: dict[str, Any] = dict(COMPOSE[service]["environment"])
    replaced = {
        "STABLESSM_DATABASE_URL": here.environment["DATABASE"],
        "STABLESSM_BROKER_URL": here.environment["BROKER"],
        "STABLESSM_TOKEN": TOKEN,
    }
    resolved = {name: replaced.get(name, re.sub(r"\$\{\w+:-?([^}]*)\}", r"\1", value)) for name, value in environment.items()}
    local = {name: value.replace(":8000", f":{here.port}") for name, value in resolved.items()}
    return {**local, "STABLESSM_DATA_DIR": f"{here.environment['STATE']}-{service}", "STABLESSM_DATA": here.environment["DATA"]}


def begin(here: Installation, service: str) -> subprocess.Popen[bytes]:
    program, *arguments = command_of(service)
    assert program == "stablessm"
    addresses = here.environment
    here.environment = {**addresses, **environment_of(service, here)}
    try:
        return here.start(*[argument.replace("8000", str(here.port)) for argument in arguments])
    finally:
        here.environment = addresses


def health(here: Installation, service: str) -> int:
    """Exit status of the service's health check."""
    kind, *words = COMPOSE[service]["healthcheck"]["test"]
    words = shlex.split(words[0]) if kind == "CMD-SHELL" else words
    assert words[0] == "python"
    command = [sys.executable, *[word.replace("8000", str(here.port)) for word in words[1:]]]
    environment = {"PATH": "/usr/bin:/bin", **environment_of(service, here)}
    return subprocess.run(command, env=environment, capture_output=True, timeout=120).returncode


def test_the_compose_services_train_a_submitted_run(installation: Installation) -> None:
    assert begin(installation, "migrate").wait(180) == 0, installation.output()
    server = begin(installation, "server")
    installation.wait("healthy server", lambda: health(installation, "server") == 0)
    worker = begin(installation, "worker")
    installation.wait_until_ready()
    installation.wait("healthy worker", lambda: health(installation, "worker") == 0)
    with installation.client() as client:
        body = {"task": {"name": "polynomial_memory", "length": 20}, "train": {"steps": 30, "batch_size": 4}}
        run = client.post("/api/runs", json=body).raise_for_status().json()
        assert installation.wait_for_end(client, run["id"])["status"] == "finished"
    assert installation.stop(worker) == 0, installation.output()
    assert installation.stop(server) in (0, -signal.SIGTERM), installation.output()
    installation.wait_until_gone()


def test_the_server_accepts_only_its_published_host_names(installation: Installation) -> None:
    assert begin(installation, "migrate").wait(180) == 0, installation.output()
    begin(installation, "server")
    installation.wait("healthy server", lambda: health(installation, "server") == 0)
    for host, status in ((f"localhost:{installation.port}", 200), ("example.org", 421), (f"127.0.0.1:{installation.port}", 200)):
        assert httpx.get(f"{installation.url}/healthz", headers={"Host": host}, timeout=60).status_code == status
    assert httpx.get(f"{installation.url}/api/runs", timeout=60).status_code == 401
    assert not (Path(installation.environment["STATE"] + "-server") / "token").exists()
