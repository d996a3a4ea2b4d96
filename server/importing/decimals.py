"""Decides whether a comma in the numbers of a table is a decimal comma, and reads such numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from server.importing.found_run import Unreadable

COMMA = re.compile(r"[+-]?\d*,\d+([eE][+-]?\d+)?")  # 0,5 and 1,234
DOTS_AND_COMMA = re.compile(r"[+-]?\d{1,3}(\.\d{3})+,\d+([eE][+-]?\d+)?")  # 1.234,5
COMMAS_AND_DOT = re.compile(r"[+-]?\d{1,3}(,\d{3})+\.\d*([eE][+-]?\d+)?")  # 1,234.5
THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+")  # 1,234 and 1,234,567
DOT = re.compile(r"[+-]?\d*\.\d*([eE][+-]?\d+)?")


def is_number(cell: str) -> bool:
    """True for a number with a decimal point, NaN, or an infinity."""
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell


@dataclass(frozen=True)
class Decimals:
    """How the numbers of a table are written. comma: their decimal mark is a comma."""

    comma: bool = False

    def number(self, cell: str) -> float | None:
        """The number in a cell; None if it is none."""
        cell = cell.strip()
        if self.comma and (COMMA.fullmatch(cell) or DOTS_AND_COMMA.fullmatch(cell)):
            return float(cell.replace(".", "").replace(",", "."))
        if not self.comma and COMMAS_AND_DOT.fullmatch(cell):
            return float(cell.replace(",", ""))
        return float(cell) if is_number(cell) else None


def find_decimals(cells: Iterable[str]) -> Decimals:
    """The decimal mark that all these cells have. Raises Unreadable if they have two marks, or if one cell has two meanings."""
    comma = point = unclear = ""
    for cell in map(str.strip, cells):
        if THOUSANDS.fullmatch(cell):
            unclear = unclear or cell
            if cell.count(",") > 1:
                point = point or cell
        elif COMMA.fullmatch(cell) or DOTS_AND_COMMA.fullmatch(cell):
            comma = comma or cell
        elif COMMAS_AND_DOT.fullmatch(cell) or (DOT.fullmatch(cell) and is_number(cell)):
            point = point or cell
    if comma and point:
        raise Unreadable(f"its numbers have decimal commas ({comma!r}) and decimal points ({point!r})")
    if unclear and not comma:
        raise Unreadable(f"{unclear!r} may be a number with a decimal comma or one with a mark for thousands")
    return Decimals(bool(comma))
