"""The GPUs this worker may use, found without torch, and its booking of them: a lock each, so that no two workers train on one.

A GPU is known by its UUID everywhere: an index means another GPU in every container and in every order. Its lock is an flock on a
file of that name in a folder that all workers of the machine share. The training process holds it too, so a GPU is free only when
the process that used it is gone.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import stat
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

FOLDER = "stablessm-gpus"
SHARED_PLACES = (Path("/run/lock"), Path("/tmp"))  # noqa: S108 - every user may lock there, and none may remove another's file
ON_THE_CPU = "CUDA_VISIBLE_DEVICES= (set, and empty) trains on the CPU"

log = logging.getLogger(__name__)


class GpuError(Exception):
    """The GPUs of this machine cannot be listed or booked; the text says why and what to do."""


@dataclass(frozen=True)
class Gpu:
    uuid: str
    name: str


def visible_gpus(devices: Path = Path("/dev")) -> list[Gpu]:
    """What nvidia-smi lists, narrowed by CUDA_VISIBLE_DEVICES; empty without a driver.

    Raises GpuError where there are GPUs that cannot be listed: two workers would train on the same one, or on the CPU unasked.
    """
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
    wanted = None if allowed is None else [name.strip() for name in allowed.split(",") if name.strip() not in ("", "-1")]
    if wanted == []:
        return []
    query = ["nvidia-smi", "--query-gpu=index,uuid,name", "--format=csv,noheader"]
    try:
        lines = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout.splitlines()
    except (OSError, subprocess.SubprocessError) as error:
        if any(devices.glob("nvidia[0-9]*")):
            raise GpuError(f"this machine has GPUs, and nvidia-smi cannot list them ({error}); {ON_THE_CPU}") from None
        return []
    found = [[part.strip() for part in line.split(",", 2)] for line in lines if line.count(",") >= 2]
    if wanted is None:
        return [Gpu(uuid, name) for _, uuid, name in found]
    return [_named(given, found) for given in dict.fromkeys(wanted)]


def _named(given: str, found: list[list[str]]) -> Gpu:
    """The GPU that CUDA_VISIBLE_DEVICES names: by index in the order of the PCI bus, by UUID, or by the beginning of one."""
    if given.startswith("MIG-"):  # a part of a GPU, which nvidia-smi does not list this way
        return Gpu(given, "MIG")
    fitting = [Gpu(uuid, name) for index, uuid, name in found if given == index or uuid.startswith(given)]
    if len(fitting) != 1:
        known = ", ".join(f"{index} ({uuid})" for index, uuid, _ in found) or "none"
        raise GpuError(f"CUDA_VISIBLE_DEVICES names {given[:80]!r}; this machine has {known}; {ON_THE_CPU}")
    return fitting[0]


def default_folder() -> Path:
    """Where the locks are when nobody says: the same folder for every user, because its own rights decide."""
    for place in SHARED_PLACES:
        if place.is_dir() and place.stat().st_mode & 0o1777 >= 0o777 and os.access(place, os.W_OK):
            return place / FOLDER
    return Path(tempfile.gettempdir()) / FOLDER


class Booking:
    """One worker's hold on the GPUs of its machine. Raises GpuError when `folder` cannot be used."""

    def __init__(self, gpus: list[Gpu], folder: Path) -> None:
        self.gpus, self._folder = gpus, folder
        self._held: dict[int, tuple[Gpu, int]] = {}  # place: GPU, its lock
        if gpus:
            self._open_folder()

    def take(self, place: int) -> Gpu | None:
        """The GPU of this place, booked now if it was not: the first that nobody holds. None when all are taken."""
        if place not in self._held:
            for gpu in self.gpus:
                if (lock := self._lock(gpu)) is not None:
                    self._held[place] = gpu, lock
                    break
        return self._held[place][0] if place in self._held else None

    def take_all(self) -> int:
        """Book every GPU that is free; how many are booked then."""
        count = 0
        while count < len(self.gpus) and self.take(count) is not None:
            count += 1
        return count

    def lock_of(self, place: int) -> int:
        """The descriptor of a booked place's lock."""
        return self._held[place][1]

    @property
    def names(self) -> list[str]:
        """What the makers call the booked GPUs."""
        return [self._held[place][0].name for place in sorted(self._held)]

    def taken(self) -> str:
        """A sentence for the log and the worker's row when `take` found none."""
        return f"every GPU here ({len(self.gpus)}) is booked, the others by other workers of this machine: {self._folder}"

    def release(self) -> None:
        """Give every GPU back; what trains keeps its own until it is gone."""
        for _, lock in self._held.values():
            os.close(lock)
        self._held.clear()

    def _open_folder(self) -> None:
        try:
            if not self._folder.is_dir():
                self._folder.mkdir(parents=True, exist_ok=True)
                self._folder.chmod(0o777 | stat.S_ISVTX)  # workers of every user lock here, and none removes another's file
            self._folder_lock = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(self._folder_lock, fcntl.LOCK_SH)  # systemd-tmpfiles leaves alone what is locked
        except OSError as error:
            raise GpuError(f"GPUs cannot be booked in {self._folder} (STABLESSM_GPU_LOCKS): {error.strerror}") from None

    def _lock(self, gpu: Gpu) -> int | None:
        path = self._folder / re.sub(r"[^\w.-]", "_", gpu.uuid)
        try:
            lock = self._open(path)
        except OSError as error:
            log.error("GPU %s cannot be booked: %s", gpu.uuid, error)
            return None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            return None
        return lock

    def _open(self, path: Path) -> int:
        # Reading is enough to lock. Where others may write, the kernel lets nobody create-or-open another user's file.
        try:
            return os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        except FileNotFoundError:
            pass
        try:
            lock = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
        except FileExistsError:  # another worker was as fast
            return os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        os.fchmod(lock, 0o644)  # whatever the umask: other users' workers must be able to open it
        return lock
