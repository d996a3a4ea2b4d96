"""The faults. `inject` starts a fault and returns its duration and the function that undoes it."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable

import psutil

from tests.chaos.proxy import Mode
from tests.chaos.site import Member, Site

Undo = Callable[[], None]
COSTLY = (  # faults that can last longer than a lease, so that a run may lose its worker
    "trainer killed",
    "worker killed",
    "worker's machine lost power",
    "trainer stopped past its lease",
    "worker stopped past its lease",
    "database: connections refused",
    "database: half-open",
)


class Nothing(Exception):
    """Raised if there is nothing to break at the moment, because no run is training."""


def inject(kind: str, site: Site, chance: random.Random) -> tuple[float, Undo]:
    """Inject a fault. Returns how many seconds the fault should last and the function that undoes it. May raise Nothing."""
    return FAULTS[kind](site, chance)


def _training(site: Site, chance: random.Random) -> tuple[Member, list[psutil.Process]]:
    busy = [(worker, trainers) for worker in site.workers if (trainers := site.trainers(worker))]
    if not busy:
        raise Nothing
    return chance.choice(busy)


def _kill_trainer(site: Site, chance: random.Random) -> tuple[float, Undo]:
    _, trainers = _training(site, chance)
    site.signal(trainers, chance.choice([signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT]))
    return 0.0, lambda: None


def _kill_worker(site: Site, chance: random.Random) -> tuple[float, Undo]:
    worker, _ = _training(site, chance)
    site.kill(worker)
    return chance.uniform(0, 2), lambda: site.start(worker)


def _lose_power(site: Site, chance: random.Random) -> tuple[float, Undo]:
    worker, _ = _training(site, chance)
    site.lose_power(worker)
    return chance.uniform(0, 2), lambda: site.start(worker)


def _stop_trainer(site: Site, chance: random.Random) -> tuple[float, Undo]:
    _, trainers = _training(site, chance)
    site.signal(trainers, signal.SIGSTOP)
    return site.lease + chance.uniform(1, 4), lambda: site.signal(trainers, signal.SIGCONT)


def _stop_worker(site: Site, chance: random.Random) -> tuple[float, Undo]:
    worker, trainers = _training(site, chance)
    assert worker.process is not None
    everything = [psutil.Process(worker.process.pid), *trainers]
    site.signal(everything, signal.SIGSTOP)
    return site.lease + chance.uniform(1, 4), lambda: site.signal(everything, signal.SIGCONT)


def _kill_server(site: Site, chance: random.Random) -> tuple[float, Undo]:
    site.kill(site.server)
    return chance.uniform(0, 2), lambda: site.start(site.server)


def _kill_redis(site: Site, chance: random.Random) -> tuple[float, Undo]:
    site.redis.kill()
    return chance.uniform(0, 4), site.redis.start


def _forget_redis(site: Site, chance: random.Random) -> tuple[float, Undo]:
    site.redis.kill(forget=True)
    return chance.uniform(0, 4), site.redis.start


def _kill_postgres(site: Site, chance: random.Random) -> tuple[float, Undo]:
    site.postgres.kill()
    return chance.uniform(0, 4), site.postgres.start


def _network(which: str, mode: Mode | None) -> Callable[[Site, random.Random], tuple[float, Undo]]:
    def disturb(site: Site, chance: random.Random) -> tuple[float, Undo]:
        member = chance.choice([*site.workers, *site.workers, site.server])
        proxy = member.database if which == "database" else member.broker
        if mode is None:
            proxy.cut()
            return 0.0, lambda: None
        proxy.become(mode, {"delay": chance.uniform(0.02, 0.3), "drip": 0.02}.get(mode, 0.0))
        return chance.uniform(1, 2 * site.lease if mode in ("silent", "refuse") else 4), lambda: proxy.become("pass")

    return disturb


FAULTS: dict[str, Callable[[Site, random.Random], tuple[float, Undo]]] = {
    "trainer killed": _kill_trainer,
    "worker killed": _kill_worker,
    "worker's machine lost power": _lose_power,
    "trainer stopped past its lease": _stop_trainer,
    "worker stopped past its lease": _stop_worker,
    "server killed": _kill_server,
    "Redis killed, restarted": _kill_redis,
    "Redis killed, its data gone": _forget_redis,
    "PostgreSQL killed, restarted": _kill_postgres,
    **{
        f"{which}: {name}": _network(which, mode)
        for which in ("database", "broker")
        for name, mode in {
            "connections cut": None, "connections refused": "refuse", "half-open": "silent", "delay": "delay", "slow drip": "drip"
        }.items()
    },
}  # fmt: skip
