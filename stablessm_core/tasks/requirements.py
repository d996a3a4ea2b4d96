"""What a task needs on disk, and whether it is there and whole. Imports no torch: server and supervisor ask before a run starts.

Files are read to their end, once per version (modification time and size); later questions cost a stat.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from stablessm_core import config
from stablessm_core.tasks import idx
from stablessm_core.tasks.files import DataError, locate
from stablessm_core.tasks.text import characters, check_vocabulary, split_point

MAX_LISTED = 1000  # files offered to char_lm
FULL_CHECK_BYTES = 1 << 26  # a larger file is listed by its name alone and read when it is asked for

_Signature = tuple[tuple[str, int, int], ...]
_known: dict[tuple[str, str], tuple[_Signature, int | DataError]] = {}
_lock = threading.Lock()


def task_problem(task: config.Task, data_root: Path) -> str | None:
    """Why the task cannot run with this data directory, as "path: reason"; None if it can."""
    try:
        if isinstance(task, config.Mnist):
            _check_mnist(data_root)
        elif isinstance(task, config.Digits):
            digits_file()
        elif isinstance(task, config.CharLm):
            path = locate(data_root, task.file)
            split_point(path, _count_characters(path), task.length)
    except DataError as error:
        return str(error)
    return None


def available_data(data_root: Path) -> dict[str, str]:
    """ "ok" or what is wrong, for `mnist`, `digits` and each text file by its path in the data directory.

    The generated tasks need nothing and are not listed; nor are files that hold no text.
    """
    found = {}
    for name, task in (("mnist", config.Mnist(name="mnist")), ("digits", config.Digits(name="digits"))):
        found[name] = task_problem(task, data_root) or "ok"
    for file in _files(data_root):
        try:
            path = locate(data_root, file)
            if path.stat().st_size <= FULL_CHECK_BYTES:
                _count_characters(path)
        except DataError as error:
            if "no UTF-8" not in str(error):
                found[file] = str(error)
        else:
            found[file] = "ok"
    return found


def digits_file() -> Path:
    """scikit-learn's own copy of the digits, found without importing scikit-learn, which takes seconds."""
    spec = find_spec("sklearn")
    if spec is None or not spec.submodule_search_locations:
        raise DataError("digits: scikit-learn, which ships this data, is not installed")
    path = Path(spec.submodule_search_locations[0], "datasets", "data", "digits.csv.gz")
    if not path.is_file():
        raise DataError(f"{path}: no such file in the installed scikit-learn")
    return path


def _check_mnist(data_root: Path) -> None:
    names = [name for split in idx.SPLITS.values() for name in split]
    paths = [data_root / "mnist" / (name + ending) for name in names for ending in ("", ".gz")]

    def read() -> int:
        return sum(len(idx.load_mnist(data_root, split)[1]) for split in idx.SPLITS)

    _once("mnist", [path for path in paths if path.exists()], data_root, read)


def _count_characters(path: Path) -> int:
    def read() -> int:
        count, seen = 0, set[str]()
        for part in characters(path):
            count += len(part)
            seen.update(part)
        check_vocabulary(path, len(seen))
        return count

    return _once("text", [path], path, read)


def _once(kind: str, paths: list[Path], key: Path, read: Callable[[], int]) -> int:
    """read(), or what it gave (DataError too) for the same versions of these files."""
    stats = [(str(path), path.stat()) for path in paths]
    signature = tuple((name, stat.st_mtime_ns, stat.st_size) for name, stat in stats)
    with _lock:
        known = _known.get((kind, str(key)))
    if known is None or known[0] != signature:
        try:
            known = (signature, read())
        except DataError as error:
            known = (signature, error.with_traceback(None))
        with _lock:
            _known[kind, str(key)] = known
    if isinstance(known[1], DataError):
        raise DataError(str(known[1]))
    return known[1]


def _files(data_root: Path) -> list[str]:
    """Regular files below data_root that `task.file` can name, without MNIST's own and hidden ones."""
    mnist = {f"mnist/{name}{ending}" for split in idx.SPLITS.values() for name in split for ending in ("", ".gz")}
    found: list[str] = []
    for folder, folders, files in os.walk(data_root):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            relative = Path(folder, name).relative_to(data_root).as_posix()
            if relative not in mnist and re.match(config.FILE_PATTERN, relative):
                found.append(relative)
        if len(found) >= MAX_LISTED:
            break
    return found[:MAX_LISTED]
