"""Pictures of layers show every eigenvalue at its position."""

from __future__ import annotations

import re

from web.system_pictures import ratio_picture, share, start_picture


def test_complex_eigenvalues_are_drawn_as_dots_in_the_unit_disc() -> None:
    picture = start_picture({"distance": [0.0, 0.5, 1.0], "phase": [0.0, 1.5707963, 3.0]})
    assert picture["kind"] == "disc"
    places = [tuple(map(float, place)) for place in re.findall(r"M(\S+) (\S+)h0", picture["path"])]
    assert places == [(1.0, 0.0), (0.0, -0.5), (0.0, 0.0)]  # in SVG, y grows downwards


def test_real_eigenvalues_are_drawn_as_a_histogram_of_boundary_distances() -> None:
    picture = start_picture({"distance": [1.0, 0.011, 0.011, 1e-9, 0.0], "phase": None})
    assert [(bar["x"], bar["height"]) for bar in picture["bars"]] == [(0.0, 1.0), (0.5, 1.0), (0.9688, 0.5)]


def test_ratios_are_drawn_on_a_shared_axis_and_clipped_to_its_range() -> None:
    of = {"map": "exp", "min": 1e-8, "median": 1.0, "max": 1e9, "finite": 3, "total": 4}
    assert ratio_picture([of, of | {"finite": 0}]) == [{"map": "exp", "low": 0.0, "middle": 0.4, "high": 1.0}]
    assert share(0.0, (-2, 3)) == 0.0
