"""A connection to one server: where it is, how it is asked, what its refusals become. The one place in core that speaks HTTP."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

PAGE = 100  # what is asked for at a time where there may be more
ConnectionLost = httpx.TransportError  # nobody answers, or the answer broke off


class ApiError(Exception):
    """A refusal of the server: `field` names what is wrong, `allowed` says what would be right."""

    def __init__(self, status: int, code: str, message: str, field: str | None = None, allowed: str | None = None) -> None:
        super().__init__(message + (f" (allowed: {allowed})" if allowed else ""))
        self.status, self.code, self.message, self.field, self.allowed = status, code, message, field, allowed


def find_server(data_dir: str | Path | None = None) -> tuple[str, str | None]:
    """(URL, token) from STABLESSM_URL and STABLESSM_TOKEN, else from the data directory of a `stablessm up` on this machine."""
    folder = Path(data_dir or os.environ.get("STABLESSM_DATA_DIR") or ".stablessm")
    url, token = os.environ.get("STABLESSM_URL"), os.environ.get("STABLESSM_TOKEN")
    if url is None:
        try:
            url = json.loads((folder / "up.json").read_text()).get("url")
        except (OSError, ValueError):
            url = None
    if token is None and (folder / "token").is_file():
        token = (folder / "token").read_text().strip()
    return url or "http://127.0.0.1:8000", token


class Connection:
    """Requests to one server; closed by `close()` or at the end of a `with`.

    Raises ApiError when the server refuses, httpx.TransportError when it does not answer.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        timeout: float = 30.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        found_url, found_token = find_server()
        token = token or (found_token if url in (None, found_url) else None)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.url = (url or found_url).rstrip("/")
        self._http = httpx.Client(base_url=self.url, headers=headers, timeout=timeout, transport=transport)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        """The answer to a request; `options` are those of httpx: `json`, `params`, `headers`, `content`."""
        answer = self._http.request(method, path, **options)
        _raise(answer)
        return answer

    def get(self, path: str, **params: Any) -> Any:
        """The JSON at a path. Parameters that are None are left out."""
        return self.request("GET", path, params=given(**params)).json()

    def send(self, method: str, path: str, body: Mapping[str, Any] | None = None, **options: Any) -> Any:
        """The JSON that a write is answered with; None where it is answered with nothing."""
        answer = self.request(method, path, **({} if body is None else {"json": body}), **options)
        return answer.json() if answer.content else None

    def pages(self, path: str, name: str, limit: int | None, **params: Any) -> Iterator[dict[str, Any]]:
        """Every entry of the list `name` at a path that is read page by page, at most `limit`."""
        cursor, left = None, limit
        while left is None or left > 0:
            page = self.get(path, cursor=cursor, limit=PAGE if left is None else min(left, PAGE), **params)
            yield from page[name]
            left = None if left is None else left - len(page[name])
            cursor = page["next_cursor"]
            if cursor is None:
                return

    def lines(self, path: str, headers: Mapping[str, str], **params: Any) -> Iterator[str]:
        """The lines of an answer that goes on, as they come."""
        timeout = httpx.Timeout(10.0, read=40.0)  # the server breaks a silence within 15 s
        with self.streamed("GET", path, headers=dict(headers), params=given(**params), timeout=timeout) as answer:
            yield from answer.iter_lines()

    @contextmanager
    def streamed(self, method: str, path: str, **options: Any) -> Iterator[httpx.Response]:
        """The answer to a request before its body is read."""
        with self._http.stream(method, path, **options) as answer:
            if answer.is_error:
                answer.read()
            _raise(answer)
            yield answer


def given(**values: Any) -> dict[str, Any]:
    """What is not None of it."""
    return {key: value for key, value in values.items() if value is not None}


def _raise(answer: httpx.Response) -> None:
    if answer.is_success:
        return
    try:
        error = answer.json()["error"]
    except (ValueError, KeyError, TypeError):
        raise ApiError(answer.status_code, "error", f"the server answered {answer.status_code}: {answer.text[:200]}") from None
    raise ApiError(answer.status_code, error["code"], error["message"], error.get("field"), error.get("allowed"))
