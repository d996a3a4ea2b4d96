"""Sends requests to one server. Finds its address, reads lists page by page, and raises ApiError for refused requests.

The other modules of the client do not import httpx.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

MOST_NAMES = 12  # number of allowed names that an error's text lists if it also suggests one
PAGE = 100  # number of entries per page of a list
ConnectionLost = httpx.TransportError  # raised if the server does not respond, or if its response ends early


class ApiError(Exception):
    """The server refused a request. `field` names the invalid field, and `allowed` lists the accepted values."""

    def __init__(self, status: int, code: str, message: str, field: str | None = None, allowed: str | None = None) -> None:
        names = allowed.split(", ") if allowed else []
        if "did you mean" in message and len(names) > MOST_NAMES:
            names = [*names[:MOST_NAMES], f"and {len(names) - MOST_NAMES} more"]
        shown = "" if not allowed or allowed in message else f" (allowed: {', '.join(names)})"
        super().__init__(message + shown)
        self.status, self.code, self.message, self.field, self.allowed = status, code, message, field, allowed


def find_server(data_dir: str | Path | None = None) -> tuple[str, str | None]:
    """The server's URL and token.

    Both are read from STABLESSM_URL and STABLESSM_TOKEN, or else from the data directory of `stablessm up` on this machine.
    """
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
    """A connection to one server. `close()` or the end of a `with` block closes the connection.

    Methods raise ApiError if the server refuses a request, and httpx.TransportError if the server does not respond.
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
        self.url = _checked(url or found_url).rstrip("/")
        self._http = httpx.Client(base_url=self.url, headers=headers, timeout=timeout, transport=transport)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        """The response to a request. options: arguments for httpx, such as `json`, `params`, `headers` and `content`."""
        response = self._http.request(method, path, **options)
        _raise_for_refusal(response)
        return response

    def get(self, path: str, **params: Any) -> Any:
        """The JSON at a path. Parameters that are None are omitted."""
        return self.request("GET", path, params=without_none(**params)).json()

    def send(self, method: str, path: str, body: Mapping[str, Any] | None = None, **options: Any) -> Any:
        """The JSON response to a write request; None if the response is empty."""
        response = self.request(method, path, **({} if body is None else {"json": body}), **options)
        return response.json() if response.content else None

    def pages(self, path: str, name: str, limit: int | None, **params: Any) -> Iterator[dict[str, Any]]:
        """At most `limit` entries of the list `name` at a path, read page by page."""
        cursor, left = None, limit
        while left is None or left > 0:
            page = self.get(path, cursor=cursor, limit=PAGE if left is None else min(left, PAGE), **params)
            yield from page[name]
            left = None if left is None else left - len(page[name])
            cursor = page["next_cursor"]
            if cursor is None:
                return

    def lines(self, path: str, headers: Mapping[str, str], **params: Any) -> Iterator[str]:
        """The lines of a streamed response, as they arrive."""
        timeout = httpx.Timeout(10.0, read=40.0)  # the server sends data at least every 15 s
        with self.streamed("GET", path, headers=dict(headers), params=without_none(**params), timeout=timeout) as response:
            yield from response.iter_lines()

    @contextmanager
    def streamed(self, method: str, path: str, **options: Any) -> Iterator[httpx.Response]:
        """The response to a request. The body of the response has not been read yet."""
        with self._http.stream(method, path, **options) as response:
            if response.is_error:
                response.read()
            _raise_for_refusal(response)
            yield response

    def _save(self, path: str, target: Path, *, check_etag: bool = False, **options: Any) -> Path:
        """Write the body of the response to a GET request to the file `target`, which appears only once it is complete.

        check_etag: raise ValueError if the response's ETag is not the SHA-256 of the body.
        """
        partial, digest = target.with_name(f".{target.name}.{os.getpid()}.partial"), hashlib.sha256()
        try:
            with self.streamed("GET", path, **options) as response, partial.open("wb") as file:
                for chunk in response.iter_bytes():
                    digest.update(chunk)
                    file.write(chunk)
            if check_etag and response.headers["ETag"].strip('"') != digest.hexdigest():
                raise ValueError(f"{path} was damaged in transit: the SHA-256 of the received bytes is {digest.hexdigest()}")
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)
        return target


def _checked(url: str) -> str:
    """The address unchanged. Raises ValueError if it is not an address of a server."""
    try:
        parts = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ValueError(f"{url[:200]!r} is not the address of a server ({error}); expected http://HOST:PORT") from None
    if parts.scheme not in ("http", "https") or not parts.host:
        raise ValueError(f"the address of the server is {url[:200]!r}; it must begin with http:// or https://")
    return url


def without_none(**values: Any) -> dict[str, Any]:
    """The given values without those that are None."""
    return {key: value for key, value in values.items() if value is not None}


def join_numbers(numbers: Sequence[int] | None) -> str | None:
    """The numbers, separated by commas, as a query parameter; None if `numbers` is None."""
    return None if numbers is None else ",".join(map(str, numbers))


def _raise_for_refusal(response: httpx.Response) -> None:
    if response.is_success:
        return
    try:
        error = response.json()["error"]
    except (ValueError, KeyError, TypeError):
        message = f"the server responded {response.status_code}: {response.text[:200]}"
        raise ApiError(response.status_code, "error", message) from None
    raise ApiError(response.status_code, error["code"], error["message"], error.get("field"), error.get("allowed"))
