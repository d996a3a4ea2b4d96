"""The files of exported series: no two series share a file, whatever the file system makes of the names."""

from __future__ import annotations

import itertools
import json
import unicodedata
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

from server.cli.file_names import LONGEST, file_name
from server.cli.main import main
from server.database.connection import Database
from tests.server.http_service import BEARER, TOKEN, running
from tests.server.importing.command import run

HOSTILE = [
    "train/loss", "train-loss", "a//b", "a--b", "a/-b", "a-/b", "Loss", "loss", "LOSS", "CON", "con", "con.x", "nul", "com1",
    "LPT9", "run", "series", "x" * 120, "x" * 119 + "y", "ü" * 120, "ü" * 119 + "u", "é", "e\u0301", "%2d", "%", "a b", "a.",
    "a",
    ".a", "~", "損失", "Ä", "ä", "ß",
    "ss", "\u017f", "s", "K", "\u212a", "k", "a:b", "a*b", "a\\b", "a|b", "a?b", "..a", "<", ">",
    '"', "a=b",
]  # fmt: skip


def test_every_name_of_a_series_has_a_file_name_of_its_own() -> None:
    alphabet = "aA-/%.~é "
    names = {"".join(some) for length in (1, 2, 3, 4) for some in itertools.product(alphabet, repeat=length)} | {*HOSTILE}
    folded = [unicodedata.normalize("NFC", file_name(name)).casefold() for name in names]
    assert len(set(folded)) == len(names)
    assert all(one.isascii() and 1 <= len(one) <= LONGEST and one[0] != "." and one[-1] not in ". " for one in folded)
    assert not {"con", "nul", "com1", "lpt9", "run", "series"} & {one.partition(".")[0] for one in folded}
    assert (file_name("train/loss"), file_name("ssm/0/grad_over_weight")) == ("train-loss", "ssm-0-grad_over_weight")


@pytest.mark.slow
@pytest.mark.parametrize("form", ["csv", "json"])
def test_an_export_of_hostile_names_can_be_read_back(form: str, sqlite: Database, tmp_path: Path) -> None:
    names = [name for name in HOSTILE if not name.startswith("..")]
    lines = [json.dumps({"step": step} | {name: 100 * step + i for i, name in enumerate(names)}) for step in (1, 2)]
    (tmp_path / "t.jsonl").write_text("\n".join(lines) + "\n")
    with running(sqlite.url, tmp_path) as (address, _), httpx.Client(base_url=address, headers=BEARER) as server:
        assert run(server, tmp_path / "t.jsonl", "-p", "p", "--loss", "train/loss").exit_code == 0
        environment = {"STABLESSM_URL": address, "STABLESSM_TOKEN": TOKEN}
        asked = ["export", "1", "-o", str(tmp_path / "out"), "--format", form]
        done = CliRunner().invoke(main, asked, env=environment, catch_exceptions=False)
    files = json.loads((tmp_path / "out" / "series.json").read_text())
    assert sorted(files.values()) == sorted(names)
    assert len(done.output.splitlines()) == len(files) == len(list((tmp_path / "out").iterdir())) - 2
    for file, name in files.items():
        text = (tmp_path / "out" / file).read_text()
        values = [float(line.split(",")[1]) for line in text.splitlines()[1:]] if form == "csv" else json.loads(text)["value"]
        assert values == [100 + names.index(name), 200 + names.index(name)]
