"""A whole installation on this machine for fault tests: services, server and workers, with a proxy on every connection."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from server.database.connection import Database
from server.settings import run_folder
from tests.chaos.proxy import Proxy
from tests.chaos.services import Postgres, Redis, until
from tests.installation import hold_port

TOKEN = "the-token-of-the-chaos-suite"
MARK = "STABLESSM_CHAOS_MARK"


@dataclass
class Member:
    """The server or a worker, with its own proxied connections to the database and the broker."""

    name: str
    arguments: list[str]
    database: Proxy
    broker: Proxy
    process: subprocess.Popen[bytes] | None = None


class Site:
    """The installation. `lease`: the workers' --lease-seconds. All files are in `folder`; `close` ends every process."""

    def __init__(self, folder: Path, *, workers: int, lease: int) -> None:
        self.folder, self.data_dir, self.lease, self._held = folder, folder / "state", lease, hold_port()
        self.port = self._held.getsockname()[1]
        self.mark = uuid.uuid4().hex
        folder.chmod(0o755)  # PostgreSQL runs as another user
        self.postgres, self.redis = Postgres(folder / "postgres"), Redis(folder / "redis")
        for service in (self.postgres, self.redis):
            service.start()
        self.database = Database(self.postgres.url)
        self.database.migrate()
        arguments = ["worker", "--slots", "1", "--lease-seconds", str(lease)]
        self.workers = [self._member(f"worker-{i}", arguments) for i in range(workers)]
        self.server = self._member("server", ["serve", "--port", str(self.port)])
        self.proxies = [proxy for member in (*self.workers, self.server) for proxy in (member.database, member.broker)]

    def open(self) -> None:
        for member in (self.server, *self.workers):
            self.start(member)
        until("server", self.healthy)

    def start(self, member: Member) -> None:
        environment = os.environ | {
            MARK: self.mark,
            "PYTHONUNBUFFERED": "1",
            "STABLESSM_DATABASE_URL": f"postgresql+psycopg://stablessm@127.0.0.1:{member.database.port}/postgres",
            "STABLESSM_BROKER_URL": f"redis://127.0.0.1:{member.broker.port}/0",
            "STABLESSM_DATA_DIR": str(self.data_dir),
            "STABLESSM_TOKEN": TOKEN,
            "STABLESSM_RUNS_PER_MINUTE": "0",
            "STABLESSM_MIN_FREE_MIB": "0",  # some faults use a file system of 3 MiB
            "OMP_NUM_THREADS": "1",
        }
        self.data_dir.mkdir(parents=True, exist_ok=True)
        command = [str(Path(sys.executable).parent / "stablessm"), *member.arguments]
        with (self.folder / f"{member.name}.log").open("ab") as log:
            member.process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=environment,
                cwd=self.folder,
                start_new_session=True,
            )

    def kill(self, member: Member) -> None:
        """Kill the process and its training processes with kill -9, as a power cut would."""
        for process in [*self.trainers(member, warm=True), *self._tree(member)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        if member.process is not None:
            member.process.wait()
            member.process = None

    def lose_power(self, member: Member) -> list[int]:
        """Kill a worker and remove the spools of its runs: they are never synced to disk, so a power cut would lose them."""
        runs = [self.run_of(process) for process in self.trainers(member)]
        self.kill(member)
        for run_id in filter(None, runs):
            shutil.rmtree(run_folder(self.data_dir, run_id) / "spool", ignore_errors=True)
        return [run_id for run_id in runs if run_id]

    def trainers(self, member: Member, *, warm: bool = False) -> list[psutil.Process]:
        """Training processes of a worker that have a run; with `warm`, also those that wait for a run."""
        found = []
        for process in self._tree(member)[1:]:
            with contextlib.suppress(psutil.Error):
                if "worker.trainer" in process.cmdline() and (warm or self.run_of(process) is not None):
                    found.append(process)
        return found

    def run_of(self, process: psutil.Process) -> int | None:
        """The run whose log the training process writes."""
        with contextlib.suppress(OSError):
            target = Path(os.readlink(f"/proc/{process.pid}/fd/2"))
            if target.name == "log.txt" and target.parent.name.isdigit():
                return int(target.parent.name)
        return None

    def signal(self, processes: list[psutil.Process], number: signal.Signals) -> None:
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=f"http://127.0.0.1:{self.port}", headers={"Authorization": f"Bearer {TOKEN}"}, timeout=10)

    def healthy(self) -> bool:
        try:
            with self.client() as client:
                return client.get("/readyz").status_code == 200
        except httpx.TransportError:
            return False

    def submit(self, config: dict[str, Any]) -> int:
        """Submit by REST. Repeats the request with the same key until there is a response, because the server may be down."""
        key, answer = uuid.uuid4().hex, list[int]()

        def asked() -> bool:
            try:
                with self.client() as client:
                    reply = client.post("/api/runs", json=config, headers={"Idempotency-Key": key})
            except httpx.TransportError:
                return False
            if 400 <= reply.status_code < 500 and reply.status_code != 409:
                raise RuntimeError(f"submission refused: {reply.text}")
            if reply.is_success:
                answer.append(reply.json()["id"])
            return bool(answer)

        until("answer to a submission", asked, 180)
        return answer[0]

    def logs(self, characters: int = 6000) -> str:
        """The ends of the logs, for diagnosis."""
        found = [*self.folder.glob("*.log"), *self.data_dir.glob("runs/*/log.txt")]
        return "\n".join(f"--- {path}\n{path.read_text(errors='replace')[-characters:]}" for path in sorted(found))

    def close(self) -> None:
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(MARK) == self.mark:
                    process.kill()
        for member in (*self.workers, self.server):
            if member.process is not None:
                member.process.wait()
        for proxy in self.proxies:
            proxy.close()
        self.database.close()
        self.redis.kill()
        self.postgres.kill()

    def _member(self, name: str, arguments: list[str]) -> Member:
        return Member(name, arguments, Proxy(("127.0.0.1", self.postgres.port)), Proxy(("127.0.0.1", self.redis.port)))

    def _tree(self, member: Member) -> list[psutil.Process]:
        if member.process is None:
            return []
        try:
            root = psutil.Process(member.process.pid)
            return [root, *root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []
