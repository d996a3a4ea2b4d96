"""Parses the text of a filter into a tree: tokenization, then recursive descent. This file is independent of the fields.

    filter  = all {"OR" all}
    all     = part {["AND"] part}
    part    = "NOT" part | "(" filter ")" | term | word
    term    = field operator value | field ["NOT"] "IN" "(" value {"," value} ")"

A field with a slash (train/loss), or in double quotes ("val acc"), is the newest value of the scalar with this name.

An operator is one of = != < <= > >= ~. Keywords may have any letter case. Text that contains a space or one of " = < > ~ ! ( ) ,
needs double quotes. Inside the quotes, a backslash escapes the next character.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

MAX_LENGTH, MAX_TERMS, MAX_DEPTH = 1000, 50, 20
OPERATORS = ("=", "!=", "<", "<=", ">", ">=", "~")
KEYWORDS = ("AND", "OR", "NOT", "IN")
TOKEN = re.compile(r'(?P<string>"(?:[^"\\]|\\.)*")|(?P<operator>!=|<=|>=|[=<>~])|(?P<mark>[(),])|(?P<word>[^\s"=<>~!(),]+)', re.S)
FIELD = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*|[^\s/][^\s]*/[^\s]*|metric\.\S+")  # with a slash: a scalar, such as train/loss
A_TERM = f"field operator value with one of {' '.join(OPERATORS)}, field in (value, value), a word of the name, NOT, or ( )"
QUOTED = "double quotes around a value with spaces or one of = < > ~ ! ( ) ,"
FOREIGN = {"&&": "AND", "&": "AND", "||": "OR", "|": "OR", "==": "="}


class FilterError(ValueError):
    """A filter is invalid. `message` describes the error, which is at `position`; `allowed` describes what is allowed at this
    position."""

    def __init__(self, message: str, allowed: str, *, position: int = 0, length: int = 0, parameter: str = "q") -> None:
        super().__init__(message)
        self.message, self.allowed, self.position, self.length, self.parameter = message, allowed, position, length, parameter

    def __str__(self) -> str:
        return f"{self.parameter}: {self.message}" + (f" (at character {self.position + 1})" if self.length else "")


@dataclass(frozen=True)
class Text:
    """A piece of the filter with its position. `quoted` text is never a keyword, null or `me`."""

    text: str
    position: int = field(default=0, compare=False)
    length: int = field(default=0, compare=False)
    quoted: bool = False

    def refused(self, message: str, allowed: str) -> FilterError:
        return FilterError(message, allowed, position=self.position, length=max(1, self.length))

    def check(self) -> None:
        """Raises FilterError for control characters, which databases do not accept."""
        if any(ord(c) < 32 or ord(c) == 127 or 0xD800 <= ord(c) <= 0xDFFF for c in self.text):
            raise self.refused("control characters are not allowed", "printable text")


@dataclass(frozen=True)
class Word:
    """The condition that the run's name contains this text, in any letter case."""

    text: Text


@dataclass(frozen=True)
class Term:
    """`field operator value`, or `field in (value, ...)`."""

    field: Text
    operator: str
    values: tuple[Text, ...]


@dataclass(frozen=True)
class Not:
    part: Node


@dataclass(frozen=True)
class Group:
    """At least two parts, of which all ("and") or any ("or") must hold."""

    how: Literal["and", "or"]
    parts: tuple[Node, ...]


Node = Word | Term | Not | Group


@dataclass(frozen=True)
class Token:
    kind: str  # "string", "operator", "mark", "word" or "end"
    text: Text
    follows: bool = False  # True if no space separates this token from the preceding token

    def is_mark(self, *marks: str) -> bool:
        return self.kind == "mark" and self.text.text in marks

    def is_keyword(self, keyword: str) -> bool:
        return self.kind == "word" and self.text.text.upper() == keyword


def spelled_field(name: str) -> str:
    """The name of a scalar as a filter spells it: in double quotes unless it has a slash and no special characters."""
    if "/" in name and FIELD.fullmatch(name) and (match := TOKEN.fullmatch(name)) is not None and match.lastgroup == "word":
        return name
    quoted = name.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{quoted}"'


def parse(text: str) -> Node | None:
    """The tree of a filter; None for an empty filter. Raises FilterError."""
    if len(text) > MAX_LENGTH:
        raise FilterError(f"it has {len(text)} characters", f"at most {MAX_LENGTH} characters")
    tokens = _tokens(text)
    return _Parser(tokens).filter() if len(tokens) > 1 else None


def _tokens(text: str) -> list[Token]:
    found, position = [], 0
    while position < len(text):
        if text[position].isspace():
            position += 1
            continue
        match = TOKEN.match(text, position)
        if match is None:
            piece = Text(text[position], position, 1)
            if text[position] == '"':
                raise piece.refused("a quote is not closed", 'a closing "')
            raise piece.refused(f"cannot read {text[position]!r}", "NOT, !=, or double quotes around it")
        given, kind = match[0], str(match.lastgroup)
        content = re.sub(r"\\(.)", r"\1", given[1:-1], flags=re.S) if kind == "string" else given
        piece = Text(content, position, len(given), kind == "string")
        piece.check()
        found.append(Token(kind, piece, position == match.start() and position > 0 and not text[position - 1].isspace()))
        position = match.end()
    return [*found, Token("end", Text("", len(text), 1))]


class _Parser:
    def __init__(self, tokens: Sequence[Token]) -> None:
        self.tokens, self.at, self.terms, self.depth = tokens, 0, 0, 0

    @property
    def here(self) -> Token:
        return self.tokens[self.at]

    def filter(self) -> Node:
        node = self._any()
        if self.here.kind != "end":
            raise self._unexpected()
        return node

    def _any(self) -> Node:
        parts = [self._all()]
        while self._take("OR"):
            parts.append(self._all())
        return parts[0] if len(parts) == 1 else Group("or", tuple(parts))

    def _all(self) -> Node:
        parts = [self._part()]
        while self._take("AND") or not (self.here.kind == "end" or self.here.is_mark(")") or self.here.is_keyword("OR")):
            parts.append(self._part())
        return parts[0] if len(parts) == 1 else Group("and", tuple(parts))

    def _part(self) -> Node:
        start = self.here
        if self.depth >= MAX_DEPTH:
            raise start.text.refused("it is nested too deep", f"at most {MAX_DEPTH} levels of ( ) and NOT")
        self.depth += 1
        node: Node
        if self._take("NOT"):
            node = Not(self._part())
        elif start.is_mark("("):
            node = self._parenthesis(start)
        else:
            node = self._term_or_word()
        self.depth -= 1
        return node

    def _parenthesis(self, start: Token) -> Node:
        self._apart(start)
        self.at += 1
        node = self._any()
        if not self.here.is_mark(")"):
            raise start.text.refused("this parenthesis is not closed", ")") if self.here.kind == "end" else self._unexpected()
        self.at += 1
        return node

    def _term_or_word(self) -> Node:
        first, then = self.here, self.tokens[min(self.at + 1, len(self.tokens) - 1)]
        if first.kind not in ("word", "string") or any(map(first.is_keyword, KEYWORDS)):
            raise self._unexpected()
        self._apart(first)
        self._count(first)
        if then.kind == "operator":
            self.at += 1
            return self._comparison(self._field(first))
        following = self.tokens[min(self.at + 2, len(self.tokens) - 1)]
        negated = then.is_keyword("NOT") and following.is_keyword("IN")
        if negated or then.is_keyword("IN"):
            self.at += 3 if negated else 2
            term = Term(self._field(first), "in", self._values())
            return Not(term) if negated else term
        if first.kind == "word" and first.text.text in FOREIGN:
            raise first.text.refused(
                f"{first.text.text!r} is not an operator here", f"{FOREIGN[first.text.text]}, or double quotes around it"
            )
        self.at += 1
        return Word(first.text)

    def _field(self, token: Token) -> Text:
        if token.kind == "word" and not FIELD.fullmatch(token.text.text):
            allowed = "a field; or the name of a metric with a slash or in double quotes"
            raise token.text.refused(f"{token.text.text[:40]!r} is not the name of a field", allowed)
        return token.text

    def _comparison(self, name: Text) -> Term:
        operator = self.here
        self.at += 1
        value = self.here
        listing = f"{name.text} in (one, another)"
        if value.is_mark("("):
            raise value.text.refused(f"a list cannot follow {operator.text.text}", listing)
        if value.kind not in ("word", "string"):
            raise value.text.refused(f"a value is missing after {name.text} {operator.text.text}", f"a value; {QUOTED}")
        self.at += 1
        if self.here.is_mark(","):
            raise self.here.text.refused(f"a list cannot follow {operator.text.text}", listing)
        if self.here.follows and not self.here.is_mark(")"):
            raise self.here.text.refused("a space or quotes are missing", QUOTED)
        return Term(name, operator.text.text, (value.text,))

    def _values(self) -> tuple[Text, ...]:
        values: list[Text] = []
        if not self.here.is_mark("("):
            raise self.here.text.refused("IN needs a list", "(value, value)")
        while not values or self.here.is_mark(","):
            self.at += 1
            if self.here.kind not in ("word", "string"):
                raise self.here.text.refused("a value is missing in the list", f"a value; {QUOTED}")
            if values:
                self._count(self.here)
            values.append(self.here.text)
            self.at += 1
            if not self.here.is_mark(",", ")"):
                raise self.here.text.refused("the list is not closed", f", or ); {QUOTED}")
        self.at += 1
        return tuple(values)

    def _take(self, keyword: str) -> bool:
        if not self.here.is_keyword(keyword):
            return False
        self.at += 1
        return True

    def _count(self, token: Token) -> None:
        self.terms += 1
        if self.terms > MAX_TERMS:
            raise token.text.refused("too many terms", f"at most {MAX_TERMS} terms, values of lists included")

    def _apart(self, token: Token) -> None:
        before = self.tokens[self.at - 1] if self.at else None
        if token.follows and before is not None and not before.is_mark("(") and not any(map(before.is_keyword, KEYWORDS)):
            raise token.text.refused("a space or quotes are missing", QUOTED)

    def _unexpected(self) -> FilterError:
        if self.here.kind == "end":
            return self.here.text.refused("something is missing at the end", A_TERM)
        if self.here.is_mark(")"):
            return self.here.text.refused("this parenthesis was never opened, or is empty", A_TERM)
        return self.here.text.refused(f"{self.here.text.text[:40]!r} is not allowed here", A_TERM)
