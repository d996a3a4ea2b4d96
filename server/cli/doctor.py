"""`stablessm doctor`: what is needed to train and serve here, what is missing, how to get it."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version

import click
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from server.database.connection import Database
from server.database.payloads import examine as examine_payloads
from server.settings import Settings

OK, NOTE, BAD = "ok", "note", "missing"
MARKS = {OK: click.style("ok     ", fg="green"), NOTE: click.style("note   ", fg="yellow"), BAD: click.style("missing", fg="red")}
# in a process of its own: the server's machine may have no torch, and a broken driver may crash its importer
TORCH_PROBE = """
import json, torch
gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
print(json.dumps({"torch": torch.__version__, "gpus": gpus, "built_for": torch.version.cuda}))
"""
PAYLOAD_SECONDS = 20.0
Finding = tuple[str, str, str, str]  # state, what, how it is, how to mend it


def examine(settings: Settings, say: Callable[[str], None]) -> int:
    """Print every finding; 0 if training and serving are possible, else 1."""
    worst = 0
    for check in (_python, _torch, _database, _payloads, _broker, _data, _charts):
        for state, what, how, fix in check(settings):
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
        return [(BAD, "torch", "its import takes more than two minutes", "look at the GPU driver: `nvidia-smi`")]
    if probe.returncode:
        last = (probe.stderr.strip().splitlines() or [f"the probe ended with status {probe.returncode}"])[-1]
        return [(BAD, "torch", last[:200], "`make setup` installs it; a machine that only serves can do without")]
    found = json.loads(probe.stdout)
    if found["gpus"]:
        gpu: Finding = (OK, "gpu", ", ".join(found["gpus"]), "")
    else:
        why = (
            f"torch is built for CUDA {found['built_for']}, no device answers"
            if found["built_for"]
            else "torch is built for CPUs"
        )
        gpu = (NOTE, "gpu", f"none ({why}); runs train on the CPU", "")
    return [(OK, "torch", found["torch"], ""), gpu, _package("triton", "scans run on the torch backend without it")]


def _database(settings: Settings) -> list[Finding]:
    database = Database(settings.database_url)
    if database.path is not None and not database.path.exists():
        return [(NOTE, "database", f"{database.path} does not exist yet", "`stablessm up` or `stablessm migrate` makes it")]
    try:
        with database.read() as session:
            revision = session.execute(text("SELECT version_num FROM alembic_version")).scalar_one()
    except SQLAlchemyError as error:
        reason = str(error).splitlines()[0][:200]
        return [(BAD, "database", f"{database.dialect}: {reason}", "start it, correct the URL, or run `stablessm migrate`")]
    finally:
        database.close()
    return [(OK, "database", f"{database.dialect}, schema {revision}", "")]


def _payloads(settings: Settings) -> list[Finding]:
    database = Database(settings.database_url)
    if database.path is not None and not database.path.exists():
        return []
    try:
        with database.read() as session:
            found = examine_payloads(session, PAYLOAD_SECONDS)
    except SQLAlchemyError:
        return []  # no database, or an older schema: said above
    finally:
        database.close()
    looked_at = found.matching + found.unchecked + len(found.damaged)
    part = "" if found.complete else f" among the newest, looked at for {PAYLOAD_SECONDS:.0f} s"
    if found.damaged:
        more = f", and {len(found.damaged) - 1:,} more" * (len(found.damaged) > 1)
        return [
            (BAD, "numbers", found.damaged[0] + more, "look at the disk; `stablessm restore` a backup into an empty database")
        ]
    return [(OK, "numbers", f"{looked_at:,} stored payloads whole{part} ({found.unchecked:,} from before checksums)", "")]


def _broker(settings: Settings) -> list[Finding]:
    if not settings.broker_url:
        return [(OK, "broker", "none: workers poll the database", "")]
    import redis

    client = redis.Redis.from_url(settings.broker_url, socket_connect_timeout=3, socket_timeout=3)
    try:
        return [(OK, "broker", f"Redis {client.info('server')['redis_version']}", "")]
    except redis.RedisError as error:
        return [(BAD, "broker", str(error)[:200], "start Redis, or leave --broker-url out: workers then poll the database")]
    finally:
        client.close()


def _data(settings: Settings) -> list[Finding]:
    from stablessm_core.tasks.requirements import available_data

    found = available_data(settings.data_root)
    names = [name for name, state in found.items() if state == "ok"]
    first: Finding = (OK, "data sets", f"{', '.join(names[:12]) or 'none'} in {settings.data_root}", "")
    fix = "put the files there, or set STABLESSM_DATA; polynomial_memory, associative_recall and digits need none"
    return [first, *((NOTE, f"data set {name}", state[:300], fix) for name, state in found.items() if state != "ok")]


def _charts(_: Settings) -> list[Finding]:
    return [_package("plotly", "`make setup` installs it"), _package("pyarrow", "`make setup` installs it")]


def _package(name: str, fix: str) -> Finding:
    try:
        return (OK, name, version(name), "")
    except PackageNotFoundError:
        return (NOTE, name, "not installed", fix)
