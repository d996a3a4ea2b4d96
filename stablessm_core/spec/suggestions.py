"""What an error message suggests for an unknown name: the name that was probably meant, and a short list of known names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

MOST = 30  # names in a list that people read


def did_you_mean(given: object, names: Iterable[str]) -> str:
    """ "; did you mean lr?" for "lrr", or "" if no name is similar. Names are compared regardless of case."""
    known = {name.lower(): name for name in names}
    alike = difflib.get_close_matches(str(given)[:100].lower(), known, 1)
    return f"; did you mean {known[alike[0]]}?" if alike else ""


def listed(names: Iterable[str], most: int = MOST, *, others: str = "") -> str:
    """At most `most` of the names, separated by commas, and the number of the other names. others: where those are listed."""
    names = list(names)
    if len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[:most])} and {len(names) - most} more" + (f" ({others})" if others else "")
