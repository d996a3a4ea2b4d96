"""What a finding of `stablessm doctor` is, and the checks of the permissions of files and of the free space."""

from __future__ import annotations

import shutil
import stat

from server.database.connection import Database
from server.settings import Settings

OK, NOTE, BAD = "ok", "note", "missing"
Finding = tuple[str, str, str, str]  # state, subject, finding, how to fix it


def rights(settings: Settings) -> list[Finding]:
    """Findings on whether only the owner can read the data directory, the token and the database."""
    database = Database(settings.database_url)
    wanted = [(settings.data_dir, "700"), (settings.data_dir / "token", "600")]
    if database.path is not None:
        wanted += [(database.path.with_name(database.path.name + ending), "600") for ending in ("", "-wal", "-shm")]
    database.close()
    found: list[Finding] = []
    for path, mode in wanted:
        try:
            given = stat.S_IMODE(path.stat().st_mode)
        except FileNotFoundError:
            continue
        except OSError as error:
            found.append((BAD, "rights", f"{path}: {error.strerror}", "run the doctor as the user who runs the service"))
            continue
        if given & (stat.S_IRWXG | stat.S_IRWXO):
            who = "everybody on this machine" if given & stat.S_IRWXO else "its group"
            found.append((BAD, "rights", f"{path} is readable by {who} (mode {given:o})", f"chmod {mode} '{path}'"))
    return found or [(OK, "rights", f"{settings.data_dir} is readable only by its owner", "")]


def room(settings: Settings) -> list[Finding]:
    """A finding on whether a worker on this machine has the free space that it wants."""
    if not settings.data_dir.is_dir():
        return []
    free, wanted = shutil.disk_usage(settings.data_dir).free >> 20, settings.min_free_mib
    if free >= wanted:
        return [(OK, "free space", f"{free:,} MiB in {settings.data_dir}", "")]
    fix = "free some space; until then a worker here takes no runs (STABLESSM_MIN_FREE_MIB)"
    return [(BAD, "free space", f"{free:,} MiB in {settings.data_dir}, {wanted:,} MiB are wanted", fix)]
