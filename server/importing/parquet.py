"""Reads Parquet files."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from server.importing.decimals import Decimals
from server.importing.found_run import Advance, FoundRun, Unreadable
from server.importing.importer import Candidate, Claimed, Importer
from server.importing.tables import run_of_table

pa, files = import_module("pyarrow"), import_module("pyarrow.parquet")  # they have no types

TOOL = "Parquet"
MAGIC = b"PAR1"


def read(path: Path, name: str, step: str | None, advance: Advance) -> FoundRun:
    """The run in a Parquet file. A damaged file is read up to its first damaged row group. Raises Unreadable."""
    try:
        file = files.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise Unreadable(f"{path}: its end, which describes its content, is damaged or missing ({first_line(error)})") from None
    with file:
        groups, remark = [], ""
        for number in range(file.num_row_groups):
            try:
                groups.append(file.read_row_group(number, use_threads=False))
            except (pa.ArrowException, OSError) as error:
                remark = f"{path}: row group {number + 1:,} is damaged ({first_line(error)}); it is read up to there"
                break
        table = pa.concat_tables(groups) if groups else file.schema_arrow.empty_table()
    run = run_of_table(TOOL, path, name, table, step, Decimals())
    run.remarks += [remark] if remark else []
    advance(path.stat().st_size)
    return run


def first_line(error: Exception) -> str:
    """The first line of an error of pyarrow."""
    return str(error).splitlines()[0][:200] if str(error) else type(error).__name__


def _claim(file: Candidate) -> Path | None:
    return file.path if file.head.startswith(MAGIC) else None


def _read(file: Claimed, advance: Advance) -> Iterator[FoundRun]:
    yield read(file.path, file.name, file.step, advance)


IMPORTER = Importer("Parquet files", _claim, _read)
