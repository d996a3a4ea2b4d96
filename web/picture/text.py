"""Text of a picture: names as the page shows them, with characters that the font has."""

from __future__ import annotations

import html
from functools import cache

from matplotlib.font_manager import FontProperties, findfont, get_font

SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def plain(text: str) -> str:
    """The text of a name that was escaped for Plotly. A character that the font lacks becomes its code point, so that two names
    stay different."""
    known = _characters()
    return "".join(
        c if ord(c) in known else " " if c.isspace() or not c.isprintable() else f"(U+{ord(c):04X})" for c in html.unescape(text)
    )


def power_of_ten(exponent: int) -> str:
    return "10" + str(exponent).translate(SUPERSCRIPT)


@cache
def _characters() -> frozenset[int]:
    return frozenset(get_font(findfont(FontProperties(family="DejaVu Sans"))).get_charmap())
