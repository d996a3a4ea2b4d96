"""`stablessm up`: starts and stops a server and a worker together, as child processes, on one data directory."""

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
from typing import IO, Any
from urllib.request import Request, urlopen

import click

from server.access.scopes import check_bind, load_or_create_token
from server.cli.options import BROKER, DATA_DIR, DATA_ROOT, DATABASE, HOST, NO_AUTH
from server.open_files import SERVER_NEEDS, TooFewFiles, allow_open_files
from server.settings import Settings, make_private
from worker import NO_TORCH, is_torch_installed

STOP_SECONDS = 9.0
SLOW_START_SECONDS = 60.0
PORT_SECONDS = 10.0
RESTARTS_PER_MINUTE = 5

Say = Callable[[str], None]


class UpError(click.ClickException):
    """The service cannot start. The message gives the reason in one line."""


@click.command()
@HOST
@click.option("--port", default=8000, show_default=True, type=click.IntRange(0, 65535), help="0 takes a free port.")
@DATA_DIR
@DATABASE
@BROKER
@DATA_ROOT
@NO_AUTH
@click.option("--slots", type=click.IntRange(1, 64), help="Number of runs trained at a time. Default: as `stablessm worker`.")
@click.option("--demo", is_flag=True, help="Submit the demo, 29 short runs, if no run was ever submitted here.")
def up(demo: bool, no_auth: bool, slots: int | None, **options: Any) -> None:
    """Start database, web server and worker on this machine."""
    settings = Settings.from_environment(auth=not no_auth, **options)
    sys.exit(run_service(settings, demo=demo, slots=slots, say=click.echo))


def run_service(settings: Settings, *, demo: bool, say: Say, slots: int | None = None) -> int:
    """Run the service until SIGINT or SIGTERM and return the exit status; further signals have no effect. Raises UpError."""
    if not is_torch_installed():
        raise UpError(NO_TORCH)
    try:
        allow_open_files(SERVER_NEEDS, SERVER_NEEDS, "the server")  # otherwise `up` would start the server again and again
    except TooFewFiles as error:
        raise UpError(str(error)) from None
    check_bind(settings.host, settings.token, settings.hosts, no_auth=not settings.auth)
    make_private(settings.data_dir)
    with _lock(settings.data_dir) as state:
        crashed = bool(state.read().strip())  # the file is empty after a clean shutdown
        listener = _listen(settings.host, settings.port, wait=crashed)
        settings = settings.model_copy(update={"port": listener.getsockname()[1]})
        url = f"http://{'127.0.0.1' if settings.host in ('0.0.0.0', '::') else settings.host}:{settings.port}"  # noqa: S104
        _write_state(state, {"pid": os.getpid(), "url": url})
        token = (settings.token or load_or_create_token(settings.data_dir / "token")) if settings.auth else None
        children = _Children(settings, listener, say, slots)
        try:
            children.start("worker")
            children.start("server", *(["--demo"] if demo else []))
            children.wait_until_healthy(url)
            say(f"StableSSM is at {url}/" + (f"?token={token}" if token else ""))
            say("Ctrl-C stops it.")
            return children.watch()
        finally:
            listener.close()
            children.stop()
            _write_state(state, None)


class _Children:
    """The server process and the worker process. Each leads its own process session, so Ctrl-C reaches them only through this
    process."""

    def __init__(self, settings: Settings, listener: socket.socket, say: Say, slots: int | None) -> None:
        self.settings, self.listener, self.say, self.slots = settings, listener, say, slots
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.stop_requested = threading.Event()
        self.restarts: list[float] = []
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self.stop_requested.set()

    def start(self, name: str, *arguments: str) -> None:
        settings = self.settings
        parent = ["--parent-pid", str(os.getpid())]
        inherited: tuple[int, ...] = ()
        command = [sys.executable, "-m", "worker", *parent, *(["--slots", str(self.slots)] if self.slots else [])]
        if name == "server":
            inherited = (self.listener.fileno(),)
            address = ["--fd", str(inherited[0]), "--host", settings.host, "--port", str(settings.port)]
            command = [sys.executable, "-m", "server", "serve", "--migrate", *address, *parent, *arguments]
            command += [] if settings.auth else ["--no-auth"]
        # pass settings in the environment: URLs may contain passwords, and every user can read a process's arguments
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
        slow_at = time.monotonic() + SLOW_START_SECONDS
        while not self.stop_requested.is_set():
            if self.processes["server"].poll() is not None:
                raise UpError("the server ended during startup; its output is above")
            try:
                with urlopen(Request(f"{url}/healthz", headers={"Host": host}), timeout=5):  # noqa: S310
                    return
            except OSError as error:
                if time.monotonic() > slow_at:
                    self.say(f"Still waiting for the server, which may be migrating a large database ({error}).")
                    slow_at = float("inf")
            time.sleep(0.05)

    def watch(self) -> int:
        """Restart the worker whenever it ends. Returns 0 after a signal, or 1 if the server ends unexpectedly or the worker
        ends too often."""
        while not self.stop_requested.wait(0.2):
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
        pass  # the whole process group has already ended


def _ending(status: int) -> str:
    return f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"


def _lock(data_dir: Path) -> IO[str]:
    # the kernel releases the lock when the process ends, for whatever reason
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
    # bind before starting anything, so that a port in use gives a one-line error; the server inherits the socket
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
            if time.monotonic() < deadline:  # the server of a killed `up` may still be stopping
                time.sleep(0.2)
                continue
            raise UpError(f"cannot listen on {host}:{port}: {error.strerror}; choose another --port") from None
        return listener
