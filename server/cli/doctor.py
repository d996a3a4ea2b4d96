"""`stablessm doctor`: checks what training and serving need on this machine and reports how to fix what is missing."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import click
import httpx
import redis
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from server.cli.examine_checkpoints import checkpoints
from server.cli.examine_files import BAD, NOTE, OK, Finding, rights, room
from server.cli.options import BROKER, DATA_DIR, DATA_ROOT, DATABASE
from server.database.connection import Database
from server.database.payloads import examine as examine_payloads
from server.database.revision import SchemaMismatch, check
from server.lifecycle.answers import alive_workers
from server.lifecycle.queues import why_quarantined
from server.settings import Settings
from stablessm_core.client import find_server
from stablessm_core.spec.data_sets import available_data, is_absent

MARKS = {OK: click.style("ok     ", fg="green"), NOTE: click.style("note   ", fg="yellow"), BAD: click.style("missing", fg="red")}
# this code runs in another process: the server's machine may not have torch, and with a broken GPU driver `import torch` may
# crash the process
TORCH_PROBE = """
import json, torch
from stablessm_core.kernels import library
gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
print(json.dumps({"torch": torch.__version__, "gpus": gpus, "built_for": torch.version.cuda,
                  "no_kernels": library.why_not_compiled(), "kernels": library.target()}))
"""
DOCUMENT = re.compile(
    r"(?:.*/)?(?:(?:readme|licen[cs]e|notice|copying|changelog)(?:\..*)?|.*\.md|\w*sums(?:\.txt)?)", re.IGNORECASE
)
PAYLOAD_SECONDS = 20.0
SERVER_SECONDS = 5.0
RESTORE = "check the disk, then restore a backup into an empty database with `stablessm restore`"


@click.command()
@DATA_DIR
@DATABASE
@BROKER
@DATA_ROOT
@click.option("--deep", is_flag=True, help="Read every stored number and checkpoint, however long that takes.")
def doctor(deep: bool, **options: Any) -> None:
    """Check what training and serving need on this machine, and report how to fix each problem."""
    sys.exit(examine(Settings.from_environment(**options), click.echo, deep=deep))


def examine(settings: Settings, say: Callable[[str], None], *, deep: bool = False) -> int:
    """Print every finding. Returns 0 if training and serving are possible and no file is damaged or readable by other users,
    else 1."""
    worst = 0
    payloads, files = partial(_payloads, deep=deep), partial(checkpoints, deep=deep)
    for look in (_python, _torch, rights, room, _database, _workers, payloads, files, _broker, _server, _data, _charts):
        for state, what, how, fix in look(settings):
            say(f"{MARKS[state]}  {what}: {how}" + (f"\n           {fix}" if fix else ""))
            worst |= state == BAD
    return int(worst)


def _python(_: Settings) -> list[Finding]:
    good = sys.version_info >= (3, 11)
    fix = "" if good else "install Python 3.11 or later and run `make setup` again"
    return [(OK if good else BAD, "python", f"{platform.python_version()} on {platform.machine()}", fix)]


def _torch(_: Settings) -> list[Finding]:
    try:
        probe = subprocess.run([sys.executable, "-c", TORCH_PROBE], capture_output=True, text=True, timeout=120)
    except subprocess.TimeoutExpired:
        return [(BAD, "torch", "importing it takes more than two minutes", "check the GPU driver with `nvidia-smi`")]
    if probe.returncode:
        last = (probe.stderr.strip().splitlines() or [f"the probe ended with status {probe.returncode}"])[-1]
        return [
            (
                BAD,
                "torch",
                last[:200],
                "install it with pip install 'stablessm-service[train]'; a machine that only serves does not need it",
            )
        ]
    found = json.loads(probe.stdout)
    if found["gpus"]:
        gpu: Finding = (OK, "gpu", ", ".join(found["gpus"]), "")
    else:
        why = (
            f"torch is built for CUDA {found['built_for']}, but finds no device"
            if found["built_for"]
            else "torch is built for CPUs"
        )
        gpu = (NOTE, "gpu", f"none ({why}); runs train on the CPU", "")
    fix = "see Compiled kernels in docs/operations.md; without them models train several times slower on a CPU"
    kernels: Finding = (
        (NOTE, "kernels", found["no_kernels"].splitlines()[0][:300], fix)
        if found["no_kernels"]
        else (OK, "kernels", f"compiled for {found['kernels']}", "")
    )
    return [(OK, "torch", found["torch"], ""), gpu, kernels, _package("triton", "without it, scans use the torch backend")]


def _database(settings: Settings) -> list[Finding]:
    database = Database(settings.database_url)
    if database.path is not None and not database.path.exists():
        return [(NOTE, "database", f"{database.path} does not exist yet", "`stablessm up` or `stablessm migrate` creates it")]
    try:
        with database.read() as session:
            revision = check(session.connection())
            if database.path is not None:
                session.execute(text("SELECT count(*) FROM runs")).scalar_one()
                damage = session.execute(text("PRAGMA quick_check(1)")).scalar_one()
                if damage != "ok":
                    return [(BAD, "database", f"{database.path} is damaged: {damage[:200]}", RESTORE)]
    except SchemaMismatch as error:
        return [(BAD, "database", str(error), "run `stablessm backup`, then `stablessm migrate`")]
    except SQLAlchemyError as error:
        reason = str(error).splitlines()[0][:200]
        if "malformed" in reason or "not a database" in reason:
            return [(BAD, "database", f"{database.path} is damaged: {reason}", RESTORE)]
        return [
            (BAD, "database", f"{database.dialect}: {reason}", "start the database, correct its URL, or run `stablessm migrate`")
        ]
    finally:
        database.close()
    return [(OK, "database", f"{database.dialect}, schema {revision}", "")]


def _payloads(settings: Settings, *, deep: bool) -> list[Finding]:
    database = Database(settings.database_url)
    if database.path is not None and not database.path.exists():
        return []
    try:
        with database.read() as session:
            found = examine_payloads(session, float("inf") if deep else PAYLOAD_SECONDS)
    except SQLAlchemyError:
        return []  # no database, or an older schema: `_database` reports this
    finally:
        database.close()
    checked = found.matching + found.unchecked + len(found.damaged)
    part = "" if found.complete else f"; only the newest were checked, for {PAYLOAD_SECONDS:.0f} s"
    if found.damaged:
        more = f", and {len(found.damaged) - 1:,} more" * (len(found.damaged) > 1)
        return [(BAD, "numbers", found.damaged[0] + more, RESTORE)]
    return [(OK, "numbers", f"{checked:,} stored payloads are intact, {found.unchecked:,} of them without a checksum{part}", "")]


def _workers(settings: Settings) -> list[Finding]:
    """The live workers that claim no runs because of their machine."""
    database = Database(settings.database_url)
    if database.path is not None and not database.path.exists():
        return []
    try:
        with database.read() as session:
            workers = alive_workers(session, settings.lease_seconds)
    except SQLAlchemyError:
        return []  # no database, or an older schema: `_database` reports this
    finally:
        database.close()
    idle = [(worker.id, why) for worker in workers if (why := why_quarantined(worker.capabilities)) is not None]
    fix = "repair its machine; the worker continues by itself"
    return [(BAD, "worker", f"{name}: {why[:400]}", fix) for name, why in idle]


def _broker(settings: Settings) -> list[Finding]:
    if not settings.broker_url:
        return [(OK, "broker", "none: workers poll the database", "")]
    client = redis.Redis.from_url(settings.broker_url, socket_connect_timeout=3, socket_timeout=3)
    try:
        return [(OK, "broker", f"Redis {client.info('server')['redis_version']}", "")]
    except redis.RedisError as error:
        return [(BAD, "broker", str(error)[:200], "start Redis, or omit --broker-url: workers then poll the database")]
    finally:
        client.close()


def _server(settings: Settings) -> list[Finding]:
    """Check the server that STABLESSM_URL names, or else the server that `stablessm up` started on this data directory. It is
    not an error if neither exists."""
    named = os.environ.get("STABLESSM_URL")
    running = (settings.data_dir / "up.json").is_file() and (settings.data_dir / "up.json").read_text().strip()
    if not (named or running):
        return [(NOTE, "server", "none: STABLESSM_URL is not set, and no `stablessm up` is running here", "")]
    url, token = find_server(settings.data_dir)
    try:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        answer = httpx.get(f"{url.rstrip('/')}/readyz", headers=headers, timeout=SERVER_SECONDS)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        fix = "correct STABLESSM_URL, or start the server" if named else "start `stablessm up` again: it was killed"
        return [(BAD, "server", f"{url} does not answer: {error}", fix)]
    if answer.status_code == 401:
        return [(BAD, "server", f"{url} does not accept the token", "set STABLESSM_TOKEN to a token of that server")]
    if answer.status_code != 200:
        return [(BAD, "server", f"{url} is not ready: {answer.text[:200]}", "read its log")]
    return [(OK, "server", f"{url} is ready", "")]


def _data(settings: Settings) -> list[Finding]:
    found = available_data(settings.data_root)
    found = {name: state for name, state in found.items() if not DOCUMENT.fullmatch(name)}  # they lie beside the data
    names = [name for name, state in found.items() if state == "ok"]
    first: Finding = (OK, "data sets", f"{', '.join(names[:12]) or 'none'} in {settings.data_root}", "")
    fix = "put the files there, or set STABLESSM_DATA; digits and the tasks that generate their sequences need no files"
    wrong = [(name, state) for name, state in found.items() if state != "ok"]
    damaged = "incomplete or damaged: copy or download it again"
    return [
        first,
        *(
            (NOTE, f"data set {name}", state[:300], fix) if is_absent(state) else (BAD, f"data set {name}", state[:300], damaged)
            for name, state in wrong
        ),
    ]


def _charts(_: Settings) -> list[Finding]:
    return [_package("plotly", "`make setup` installs it"), _package("pyarrow", "`make setup` installs it")]


def _package(name: str, fix: str) -> Finding:
    try:
        return (OK, name, version(name), "")
    except PackageNotFoundError:
        return (NOTE, name, "not installed", fix)
