"""`stablessm up`: one data directory, its server and its worker as child processes, started together and stopped together."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import IO
from urllib.request import Request, urlopen

from server.access.scopes import check_bind, load_or_create_token
from server.settings import Settings, make_private

STOP_SECONDS = 9.0
START_SECONDS = 60.0
PORT_SECONDS = 10.0
RESTARTS_PER_MINUTE = 5

Say = Callable[[str], None]


class UpError(Exception):
    """Why it cannot start, in one line for people."""


def up(settings: Settings, *, demo: bool, say: Say) -> int:
    """Run until SIGINT or SIGTERM and return the exit status; further signals change nothing. Raises UpError."""
    check_bind(settings.host, settings.token, settings.hosts, no_auth=not settings.auth)
    make_private(settings.data_dir)
    with _lock(settings.data_dir) as state:
        crashed = bool(state.read().strip())  # a clean end empties the file
        listener = _listen(settings.host, settings.port, wait=crashed)
        settings = settings.model_copy(update={"port": listener.getsockname()[1]})
        url = f"http://{'127.0.0.1' if settings.host in ('0.0.0.0', '::') else settings.host}:{settings.port}"  # noqa: S104
        _write_state(state, {"pid": os.getpid(), "url": url})
        token = (settings.token or load_or_create_token(settings.data_dir / "token")) if settings.auth else None
        children = _Children(settings, listener, say)
        try:
            # the worker's imports take longest and one core; database and server share the other
            children.start("worker")
            _prepare(settings, demo=demo, say=say)
            children.start("server")
            children.wait_until_healthy(url)
            say(f"StableSSM is at {url}/" + (f"?token={token}" if token else ""))
            say("Ctrl-C stops it.")
            return children.watch()
        finally:
            listener.close()
            children.stop()
            _write_state(state, None)


def _prepare(settings: Settings, *, demo: bool, say: Say) -> None:
    # imported here: the children's long imports should have begun before ours
    from server.database.connection import Database
    from server.runs.demo import submit_demo

    database = Database(settings.database_url)
    try:
        database.migrate()
        if demo and (count := submit_demo(database)):
            say(f"Submitted {count} demo runs.")
    finally:
        database.close()


class _Children:
    """Server and worker, each in a session of its own, so that Ctrl-C reaches them through us only."""

    def __init__(self, settings: Settings, listener: socket.socket, say: Say) -> None:
        self.settings, self.listener, self.say = settings, listener, say
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.stop_asked = threading.Event()
        self.restarts: list[float] = []
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self.stop_asked.set()

    def start(self, name: str) -> None:
        settings = self.settings
        parent = ["--parent-pid", str(os.getpid())]
        inherited: tuple[int, ...] = ()
        command = [sys.executable, "-m", "worker", *parent]
        if name == "server":
            inherited = (self.listener.fileno(),)
            address = ["--fd", str(inherited[0]), "--host", settings.host, "--port", str(settings.port)]
            command = [sys.executable, "-m", "server", "serve", *address, *parent]
            command += [] if settings.auth else ["--no-auth"]
        # by environment, not by argument: addresses may hold passwords, and arguments are there for all to read
        environment = os.environ | {
            "STABLESSM_DATA_DIR": str(settings.data_dir),
            "STABLESSM_DATABASE_URL": settings.database_url,
            "STABLESSM_DATA": str(settings.data_root),
            "STABLESSM_BROKER_URL": settings.broker_url or "",
        }
        self.processes[name] = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, env=environment, pass_fds=inherited, start_new_session=True
        )

    def wait_until_healthy(self, url: str) -> None:
        host = f"127.0.0.1:{self.settings.port}"
        deadline = time.monotonic() + START_SECONDS
        while not self.stop_asked.is_set():
            if self.processes["server"].poll() is not None:
                raise UpError("the server ended while it started; its last words are above")
            try:
                with urlopen(Request(f"{url}/healthz", headers={"Host": host}), timeout=5):  # noqa: S310
                    return
            except OSError as error:
                if time.monotonic() > deadline:
                    raise UpError(f"the server does not answer at {url}: {error}") from None
            time.sleep(0.05)

    def watch(self) -> int:
        """Keeps the worker running; 0 after a signal, 1 when the server ends by itself."""
        while not self.stop_asked.wait(0.2):
            if (status := self.processes["server"].poll()) is not None:
                self.say(f"The server ended by itself ({_ending(status)}); stopping.")
                return 1
            if (status := self.processes["worker"].poll()) is not None:
                now = time.monotonic()
                self.restarts = [t for t in self.restarts if now - t < 60] + [now]
                if len(self.restarts) > RESTARTS_PER_MINUTE:
                    self.say(f"The worker ended {len(self.restarts)} times within a minute; stopping.")
                    return 1
                self.say(f"The worker ended ({_ending(status)}); starting another one.")
                self.start("worker")
        self.say("Stopping.")
        return 0

    def stop(self) -> None:
        for child in self.processes.values():
            if child.poll() is None:
                child.terminate()
        deadline = time.monotonic() + STOP_SECONDS
        for name, child in self.processes.items():
            try:
                child.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                self.say(f"The {name} did not stop in time; killing it.")
            _kill_session(child.pid)
            child.wait()


def _kill_session(leader: int) -> None:
    try:
        os.killpg(leader, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass  # nobody of that group is left


def _ending(status: int) -> str:
    return f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"


def _lock(data_dir: Path) -> IO[str]:
    # the kernel lets go of the lock when the process dies, however it dies
    file = (data_dir / "up.json").open("a+", encoding="utf-8")
    file.seek(0)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        other = file.read().strip()
        file.close()
        try:
            known = json.loads(other)
            who = f"process {known['pid']} at {known['url']}"
        except (ValueError, KeyError, TypeError):
            who = "another process"
        raise UpError(f"`stablessm up` already runs on {data_dir}: {who}") from None
    return file


def _write_state(state: IO[str], text: dict[str, object] | None) -> None:
    state.seek(0)
    state.truncate()
    if text is not None:
        state.write(json.dumps(text))
    state.flush()


def _listen(host: str, port: int, *, wait: bool) -> socket.socket:
    # bound here, before anything is started: a taken port is an error of one line, and the address answers at once
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    deadline = time.monotonic() + (PORT_SECONDS if wait else 0.0)
    while True:
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
            listener.listen(2048)
        except OSError as error:
            listener.close()
            if time.monotonic() < deadline:  # the server of an `up` that was killed is still on its way out
                time.sleep(0.2)
                continue
            raise UpError(f"cannot listen on {host}:{port}: {error.strerror}; choose another --port") from None
        return listener
