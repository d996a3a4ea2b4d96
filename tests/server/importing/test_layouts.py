"""CSV files as programs really write them: encodings, decimal commas, repeated names, long headers, steps that start again."""

from __future__ import annotations

from pathlib import Path

import pytest

from server.importing.found_run import Unreadable
from server.importing.sources import find_sources
from tests.server.importing.reading import found, points, spelled


def read_twice(path: Path, content: bytes) -> str:
    """Why the file cannot be read, alone and in its folder; "" if it can, both times."""
    path.write_bytes(content)
    reasons = []
    for place in (path, path.parent):
        complaints: list[str] = []
        try:
            for source in find_sources(place, None, complaints.append):
                list(source.read(lambda _: None))
        except Unreadable as error:
            complaints.append(str(error))
        reasons.append("\n".join(complaints))
    assert reasons[0] == reasons[1]
    assert path.name in reasons[0] or not reasons[0]
    return reasons[0]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "latin-1", "cp1252"])
@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_a_table_is_read_in_each_usual_encoding(encoding: str, ends: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(f"step,größe{ends}1,0.5{ends}2,0.25{ends}".encode(encoding))
    (one,) = found(tmp_path)
    assert points(one, "größe") == spelled([1, 2], [0.5, 0.25])
    assert any("Latin-1" in remark for remark in one.remarks) == (encoding in ("latin-1", "cp1252"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("step;loss\n1;0,5\n2;0,25\n", [0.5, 0.25]),
        ("step;loss\n1;1.234,5\n2;-0,25\n", [1234.5, -0.25]),
        ("step;loss\n1;0,5\n2;1,234\n", [0.5, 1.234]),  # the first number shows what the comma is
        ("step;loss\n1;1,5E-03\n2;2E-05\n", [1.5e-3, 2e-5]),
        ("step\tloss\n1\t0,5\n2\tnan\n", [0.5, float("nan")]),
        ('step,loss\n1,"0,5"\n2,"0,25"\n', [0.5, 0.25]),
        ('step,loss\n1,"1,234.5"\n2,"12,345,678.25"\n', [1234.5, 12345678.25]),
        ("step|loss\n1|0.5\n2|0.25\n", [0.5, 0.25]),
        ("# made by a program\nstep,loss\n1,0.5\n2,0.25\n", [0.5, 0.25]),
    ],
)
def test_numbers_with_marks_that_have_one_meaning_are_read(text: str, expected: list[float], tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(text)
    (one,) = found(tmp_path)
    assert points(one, "loss") == spelled([1, 2], expected)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("step;loss\n1;1,234\n2;5,678\n", "'1,234' may be a number with a decimal comma or one with a mark for thousands"),
        ("step;loss;acc\n1;0,5;0.5\n", "its numbers have decimal commas ('0,5') and decimal points ('0.5')"),
        ("step,loss,loss\n1,2,3\n", "columns 2 and 3 are both called 'loss' and hold different values"),
        ("step,loss, loss\n1,2,3\n", "columns 2 and 3 are both called 'loss'"),
        ("1,2\n3,4\n", "it has no line of names above lines with at least two numbers"),
        ("", "it has no line of names"),
        ("a,b\nx,y\n", "it has no line of names above lines with at least two numbers"),
        (b"\x00\x01\x02" * 50, "it is no text"),
        ("iteration,epoch,loss\n0,0,1\n1,0,2\n0,0,3\n0,1,4\n", "'iteration' goes back from 1 to 0 inside epoch 0"),
    ],
)
def test_a_table_with_two_meanings_is_refused_by_name_with_the_reason(content: str | bytes, reason: str, tmp_path: Path) -> None:
    assert reason in read_twice(tmp_path / "t.csv", content.encode() if isinstance(content, str) else content)


def test_columns_that_repeat_another_one_are_read_once(tmp_path: Path) -> None:
    assert read_twice(tmp_path / "t.csv", b"step,loss,loss,,\n1,2,2,7,8\n2,nan,nan,7,8\n") == ""
    (one,) = found(tmp_path)
    assert points(one, "loss") == spelled([1, 2], [2, float("nan")])
    assert sum("repeats column 2" in remark or "2 columns without a name" in remark for remark in one.remarks) == 2


@pytest.mark.parametrize("size", [4_000, 5_000, 70_000, 200_000])
def test_a_line_of_names_may_be_long(size: int, tmp_path: Path) -> None:
    names = [f"some/long/name/of/a/number/{i}" for i in range(size // 30)]
    (tmp_path / "t.csv").write_text(f"step,{','.join(names)}\n1,{','.join(map(str, range(len(names))))}\n")
    (one,) = found(tmp_path)
    assert len(one.names) == min(2000, len(names))


@pytest.mark.parametrize(
    ("rows", "steps"),
    [
        ([(0, 0), (1, 0), (0, 1), (1, 1)], [0, 1, 2, 3]),
        ([(1, 0), (2, 0), (1, 1), (2, 1), (1, 2)], [1, 2, 3, 4, 5]),
        ([(10, 1), (20, 1), (10, 2), (20, 2)], [10, 20, 30, 40]),
        ([(0, 0), (50, 0), (100, 0), (0, 1), (50, 1)], [0, 50, 100, 150, 200]),
        ([(0, 0), (1, 0), (2, 1), (3, 1)], [0, 1, 2, 3]),  # goes on by itself
        ([(0, 0), (1, 0), (2, 0), (0, 1), (0, 2), (1, 2)], [0, 1, 2, 3, 4, 5]),
    ],
)
def test_steps_that_start_again_in_each_epoch_continue(rows: list[tuple[int, int]], steps: list[int], tmp_path: Path) -> None:
    lines = "".join(f"{step},{epoch},{i}\n" for i, (step, epoch) in enumerate(rows))
    for size in range(2, len(rows) + 1):  # rows that are added do not move earlier ones
        (tmp_path / "t.csv").write_text("iteration,epoch,loss\n" + "".join(lines.splitlines(keepends=True)[:size]))
        (one,) = found(tmp_path)
        assert points(one, "loss") == spelled(steps[:size], list(map(float, range(size))))
    (one,) = found(tmp_path, step="iteration")
    one.count_losses()
    assert points(one, "loss")[-1][0] == max(step for step, _ in rows)


def test_a_program_that_went_back_with_its_epoch_repeats_steps(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("step,epoch,loss\n0,0,1\n1,1,2\n0,0,3\n1,1,4\n2,2,5\n")
    (one,) = found(tmp_path)
    one.count_losses()
    assert points(one, "loss") == spelled([0, 1, 2], [3, 4, 5])
    assert one.left_out["earlier values at a step that has a later, different value"] == 2
