"""Lists the GPUs that this worker may use, without torch, and books them with locks, so that no two workers train on the same
GPU.

A GPU is identified by its UUID, because its index depends on the container and on the order of the GPUs. The lock of a GPU is
an flock on a file that is named after the UUID, in a folder that all workers of the machine share. The training process also
holds the lock, so a GPU is free only when the process that used it has ended.
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
SHARED_FOLDERS = (Path("/run/lock"), Path("/tmp"))  # noqa: S108 - all users may create files, but not remove files of other users
ON_THE_CPU = "CUDA_VISIBLE_DEVICES= (set, and empty) trains on the CPU"

log = logging.getLogger(__name__)


class GpuError(Exception):
    """The GPUs of this machine cannot be listed or booked; the text says why and what to do."""


@dataclass(frozen=True)
class Gpu:
    uuid: str
    name: str


def visible_gpus(devices: Path = Path("/dev")) -> list[Gpu]:
    """The GPUs that nvidia-smi lists and CUDA_VISIBLE_DEVICES allows. Empty if no driver is installed.

    Raises GpuError if GPUs exist but cannot be listed: otherwise two workers could train on the same GPU, or a worker could
    train on the CPU unexpectedly.
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
    """The GPU that CUDA_VISIBLE_DEVICES names by index (in PCI bus order), by UUID or by the beginning of a UUID."""
    if given.startswith("MIG-"):  # a partition of a GPU (MIG), which this query of `nvidia-smi` does not list
        return Gpu(given, "MIG")
    fitting = [Gpu(uuid, name) for index, uuid, name in found if given == index or uuid.startswith(given)]
    if len(fitting) != 1:
        known = ", ".join(f"{index} ({uuid})" for index, uuid, _ in found) or "none"
        raise GpuError(f"CUDA_VISIBLE_DEVICES names {given[:80]!r}; this machine has {known}; {ON_THE_CPU}")
    return fitting[0]


def default_folder() -> Path:
    """The default folder of the locks. It is chosen by its permissions, so that all users get the same folder."""
    for folder in SHARED_FOLDERS:
        if folder.is_dir() and folder.stat().st_mode & 0o1777 >= 0o777 and os.access(folder, os.W_OK):
            return folder / FOLDER
    return Path(tempfile.gettempdir()) / FOLDER


class Booking:
    """The GPUs that one worker has booked, by slot number. Raises GpuError if `folder` is unusable."""

    def __init__(self, gpus: list[Gpu], folder: Path) -> None:
        self.gpus, self._folder = gpus, folder
        self._held: dict[int, tuple[Gpu, int]] = {}  # slot -> (GPU, file descriptor of its lock)
        if gpus:
            self._open_folder()

    def take(self, slot: int) -> Gpu | None:
        """The GPU of this slot; if the slot has none, book the first free GPU for it. None if all GPUs are booked."""
        if slot not in self._held:
            for gpu in self.gpus:
                if (lock := self._lock(gpu)) is not None:
                    self._held[slot] = gpu, lock
                    break
        return self._held[slot][0] if slot in self._held else None

    def take_all(self) -> int:
        """Book every free GPU and return the number of booked GPUs."""
        count = 0
        while count < len(self.gpus) and self.take(count) is not None:
            count += 1
        return count

    def lock_of(self, slot: int) -> int:
        """The file descriptor of the lock of a booked slot."""
        return self._held[slot][1]

    @property
    def names(self) -> list[str]:
        """The product names of the booked GPUs."""
        return [self._held[slot][0].name for slot in sorted(self._held)]

    def why_none_free(self) -> str:
        """A sentence for the log and the worker's row that says why `take` found no GPU."""
        return f"every GPU here ({len(self.gpus)}) is booked, the others by other workers of this machine: {self._folder}"

    def release(self) -> None:
        """Release every GPU. A running training process keeps its GPU's lock until it ends."""
        for _, lock in self._held.values():
            os.close(lock)
        self._held.clear()

    def _open_folder(self) -> None:
        try:
            if not self._folder.is_dir():
                self._folder.mkdir(parents=True, exist_ok=True)
                self._folder.chmod(0o777 | stat.S_ISVTX)  # all users may create locks here, but not remove files of other users
            self._folder_lock = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(self._folder_lock, fcntl.LOCK_SH)  # systemd-tmpfiles does not remove locked folders
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
        # Opened for reading, which is enough for a lock. With O_CREAT, opening another user's file in a shared folder fails.
        try:
            return os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        except FileNotFoundError:
            pass
        try:
            lock = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
        except FileExistsError:  # another worker created it at the same time
            return os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        os.fchmod(lock, 0o644)  # independent of the umask, because other users' workers must be able to open the file
        return lock
