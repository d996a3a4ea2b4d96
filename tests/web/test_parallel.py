"""Parallel coordinates: the labels of an axis stay beside the axis."""

from web.parallel import LETTER, parallel_lines


def test_a_long_value_is_truncated_before_the_next_axis() -> None:
    fields = [{"field": f"task.f{i}", "values": ["polynomial_memory", "digits"]} for i in range(8)]
    ends = [{"outcome": "stable", "loss": loss} for loss in (0.1, 0.2)]
    runs = [{"id": i, "config": {}, "forms": []} for i in (1, 2)]
    lines = parallel_lines({"runs": runs, "ends": ends, "differences": fields})
    assert lines is not None
    way = lines["axes"][1]["x"] - lines["axes"][0]["x"]
    texts = [tick["text"] for axis in lines["axes"] for tick in axis["ticks"]]
    assert "polynomial_me…" in texts
    assert "digits" in texts
    assert max(map(len, texts)) * LETTER < way
