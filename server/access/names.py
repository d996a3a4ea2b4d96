"""Which names users may have, so that nobody can pass for somebody else (after Unicode Technical Standard 39).

A name must show what it contains: no invisible characters, and in each word letters of one script. Two names must also look
different: names whose characters are easily confused, such as `alice` and `alıce`, cannot both exist.
"""

from __future__ import annotations

import re
import unicodedata
from functools import cache, lru_cache

MAX_LENGTH = 100
ALLOWED = f"1 to {MAX_LENGTH} visible characters; the letters of a word must belong to one script, such as Latin or Cyrillic"
# default-ignorable code points outside the category Cf, and the Braille blank, which looks like a space
INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2065\u2800\u3164\ufe00-\ufe0f\uffa0\ufff0-\ufff8\U000e0000-\U000e0fff]"
)
HIDDEN_CATEGORIES = ("Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp")
# scripts that one word of ordinary Japanese, Chinese or Korean mixes
MIXED = ({"LATIN", "HAN", "HIRAGANA", "KATAKANA"}, {"LATIN", "HAN", "BOPOMOFO"}, {"LATIN", "HAN", "HANGUL"})


class BadName(ValueError):
    """The name may look like another one. The message says why."""


def check_name(name: str) -> str:
    """The name in Unicode's form NFKC, with single spaces. Raises BadName."""
    for character in name:
        if unicodedata.category(character) in HIDDEN_CATEGORIES or INVISIBLE.match(character):
            raise BadName(f"the name contains an invisible character, {_described(character)}")
    normal = " ".join(unicodedata.normalize("NFKC", name).split())
    if not 1 <= len(normal) <= MAX_LENGTH:
        raise BadName(f"the name has {len(normal)} characters")
    for word in re.findall(r"[^\W\d_]+", normal):
        scripts = _scripts(word)
        if len(scripts) > 1 and not any(scripts <= together for together in MIXED):
            listed = " and ".join(sorted(script.title() for script in scripts))
            raise BadName(f"the word {word[:40]!r} mixes letters of the scripts {listed}")
    return normal


@lru_cache(maxsize=20_000)
def looks(name: str) -> frozenset[str]:
    """Texts that describe how a name looks. Names look alike, regardless of case, if they share one of these texts."""
    normal = unicodedata.normalize("NFKC", name)
    return frozenset((normal.casefold(), _skeleton(normal), _skeleton(normal.casefold())))


def _skeleton(text: str) -> str:
    return "".join(map(_prototype, unicodedata.normalize("NFD", text)))


@cache
def _prototype(character: str) -> str:
    """The same text for all characters that look like this one."""
    alike = {character, *_alike(character)}
    for other in list(alike):
        if len(other) > 1:
            return "".join(map(_prototype, other))  # m looks like rn
        alike.update(text for text in _alike(other) if len(text) == 1)
    return min(alike)


def _alike(character: str) -> list[str]:
    # imported late, because the tables take 0.1 s to load and only a new name needs them
    from confusable_homoglyphs.confusables import confusables_data

    # the tables put direction marks around characters that are written from right to left
    return [entry["c"].strip("\u200e") for entry in confusables_data.get(character, ())]


def _scripts(word: str) -> set[str]:
    if word.isascii():
        return {"LATIN"}
    from confusable_homoglyphs.categories import unique_aliases

    return set(unique_aliases(word)) - {"COMMON", "INHERITED"}  # type: ignore[no-untyped-call]


def _described(character: str) -> str:
    name = unicodedata.name(character, "")
    return f"U+{ord(character):04X}" + f" ({name.capitalize()})" * bool(name)
