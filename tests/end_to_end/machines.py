"""A small network of machines: network namespaces on a bridge, with a PostgreSQL and a Redis that they can reach."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import psycopg
import redis

Unavailable = Callable[[str], NoReturn]


@dataclass(frozen=True)
class Network:
    """Some machines. `address` is the bridge's address, where the services listen; `enter` runs commands on a machine."""

    address: str
    names: dict[str, str]  # machine -> name of its namespace and of its interface at the bridge

    def enter(self, machine: str) -> list[str]:
        return ["ip", "netns", "exec", self.names[machine]]

    def cut(self, machine: str) -> None:
        _ip("link", "set", self.names[machine], "down")

    def heal(self, machine: str) -> None:
        _ip("link", "set", self.names[machine], "up")


@contextmanager
def network(*machines: str, unavailable: Unavailable) -> Iterator[Network]:
    """Creates namespaces, interface pairs and a bridge, and always removes them afterwards."""
    mark, third = secrets.token_hex(3), secrets.randbelow(250)
    bridge, prefix = f"ssmb{mark}", f"10.{200 + secrets.randbelow(50)}.{third}"
    names = {machine: f"ssm{mark}{number}" for number, machine in enumerate(machines)}
    if os.getuid() != 0 or shutil.which("ip") is None:
        unavailable("network namespaces need root and the program ip")
    with ExitStack() as undo:
        try:
            _ip("link", "add", bridge, "type", "bridge")
            undo.callback(_ip, "link", "del", bridge)
            _ip("addr", "add", f"{prefix}.1/24", "dev", bridge)
            _ip("link", "set", bridge, "up")
            for number, name in enumerate(names.values()):
                _ip("netns", "add", name)
                undo.callback(_ip, "netns", "del", name)  # also removes the interface pair
                _ip("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
                _ip("link", "set", name, "master", bridge, "up")
                _ip("-n", name, "addr", "add", f"{prefix}.{number + 10}/24", "dev", "eth0")
                _ip("-n", name, "link", "set", "eth0", "up")
                _ip("-n", name, "link", "set", "lo", "up")
        except subprocess.CalledProcessError as error:
            unavailable(f"network namespaces: {error.stderr.decode(errors='replace').strip()}")
        yield Network(f"{prefix}.1", names)


@contextmanager
def postgres(folder: Path, address: str, unavailable: Unavailable) -> Iterator[str]:
    """URL of a new PostgreSQL at this address that accepts connections from its network."""
    found = shutil.which("pg_ctl") or next((str(p) for p in sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"))[::-1]), None)
    if found is None:
        unavailable("no pg_ctl: PostgreSQL is not installed")
    programs, data = Path(os.path.realpath(found)).parent, folder / "data"
    folder.mkdir()
    shutil.chown(folder, "postgres")
    for parent in folder.parents:  # PostgreSQL runs as another user and needs access
        if parent.stat().st_uid == os.getuid() and not parent.stat().st_mode & 0o001:
            parent.chmod(parent.stat().st_mode | 0o001)
    as_postgres = ["runuser", "-u", "postgres", "--"]
    initdb = [
        *as_postgres,
        str(programs / "initdb"),
        "-D",
        str(data),
        "-U",
        "stablessm",
        "-A",
        "trust",
        "-E",
        "UTF8",
        "--no-sync",
    ]
    subprocess.run(initdb, cwd="/", check=True, capture_output=True)
    with (data / "pg_hba.conf").open("a") as rules:
        rules.write(f"host all all {address}/24 trust\n")
    options = ["-c", f"listen_addresses={address}", "-c", f"unix_socket_directories={folder}", "-c", "fsync=off"]
    with (folder / "log").open("wb") as log:
        command = [*as_postgres, str(programs / "postgres"), "-D", str(data), *options]
        process = subprocess.Popen(command, cwd="/", stdout=log, stderr=log)
    try:
        _until_answers(lambda: psycopg.connect(f"host={address} user=stablessm dbname=postgres", connect_timeout=2).close())
        yield f"postgresql+psycopg://stablessm@{address}:5432/postgres"
    finally:
        pid = int((data / "postmaster.pid").read_text().split()[0])
        os.kill(pid, 3)  # SIGQUIT ends PostgreSQL and its children at once
        process.wait(90)


@contextmanager
def redis_server(folder: Path, address: str, unavailable: Unavailable) -> Iterator[str]:
    """URL of a new Redis at this address."""
    if shutil.which("redis-server") is None:
        unavailable("no redis-server on the PATH")
    folder.mkdir()
    password = secrets.token_hex(8)
    options = ["--bind", address, "--port", "6379", "--requirepass", password, "--save", "", "--dir", str(folder)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(["redis-server", *options], stdout=log, stderr=log)
    url = f"redis://:{password}@{address}:6379/0"
    try:
        _until_answers(lambda: _ping(url))
        yield url
    finally:
        process.kill()
        process.wait(60)


def _ping(url: str) -> None:
    with redis.Redis.from_url(url) as client:
        client.ping()


def _until_answers(ask: Callable[[], None], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            return ask()
        except (psycopg.OperationalError, redis.RedisError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
