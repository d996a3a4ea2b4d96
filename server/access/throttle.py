"""Rate limits for wrong tokens per address, and for new runs and reported records per token. Each limit uses a bounded amount of
memory."""

from __future__ import annotations

import ipaddress
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from functools import lru_cache
from typing import TypeVar

REMEMBERED = 10_000  # maximum number of entries that each dictionary keeps in memory
MINUTES_OF_BURST = 10

K = TypeVar("K")
V = TypeVar("V")


class FailedTokens:
    """Limits wrong tokens per address. A token that has worked from an address before is never limited at this address."""

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.per_minute, self._clock = per_minute, clock
        self._failed: OrderedDict[str, deque[float]] = OrderedDict()
        self._good: OrderedDict[tuple[str, str], None] = OrderedDict()

    def wait(self, address: str, sha256: str) -> float:
        """Seconds until this address may try this token; 0 if the address may try it now."""
        network = _network(address)
        times = self._failed.get(network)
        if times is None or (network, sha256) in self._good:
            return 0.0
        return max(0.0, times[0] + 60.0 - self._clock()) if len(times) == self.per_minute else 0.0

    def failed(self, address: str) -> None:
        _touch(self._failed, _network(address), deque(maxlen=self.per_minute)).append(self._clock())

    def succeeded(self, address: str, sha256: str) -> None:
        _touch(self._good, (_network(address), sha256), None)


class RateLimit:
    """Allows `per_minute` actions per minute and key, and bursts of up to `burst_minutes` times as many. 0 means no limit."""

    def __init__(
        self, per_minute: int, clock: Callable[[], float] = time.monotonic, *, burst_minutes: float = MINUTES_OF_BURST
    ) -> None:
        self.per_minute, self._clock, self._burst = per_minute, clock, per_minute * burst_minutes
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()  # key -> (actions left, time of the last update)

    def take(self, key: str, amount: float = 1.0) -> float:
        """Use `amount` actions and return 0, or return the seconds until so many are available. An amount above the longest
        burst is available when the whole burst is."""
        if not self.per_minute:
            return 0.0
        now, most = self._clock(), self._burst
        amount = min(amount, most)
        left, since = self._left.get(key, (most, now))
        left = min(most, left + (now - since) * self.per_minute / 60.0)
        _touch(self._left, key, (0.0, 0.0))
        self._left[key] = (left - amount if left >= amount else left, now)
        return 0.0 if left >= amount else (amount - left) * 60.0 / self.per_minute


def _touch(known: OrderedDict[K, V], key: K, fresh: V) -> V:
    value = known.setdefault(key, fresh)
    known.move_to_end(key)
    if len(known) > REMEMBERED:
        known.popitem(last=False)
    return value


@lru_cache(maxsize=4096)
def _network(address: str) -> str:
    # count IPv6 addresses by /64 network, because one customer usually has a whole /64
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    return str(ipaddress.ip_network((address, 64), strict=False)) if parsed.version == 6 else address
