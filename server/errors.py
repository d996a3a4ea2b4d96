"""The errors of the service: exceptions with an HTTP status and the body `{"error": {code, message, field?, allowed?}}`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CODES = {
    400: "bad_request",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    408: "request_timeout",
    409: "conflict",
    413: "too_large",
    415: "unsupported_media_type",
    421: "misdirected",
    422: "invalid",
    429: "too_many_requests",
    500: "internal",
    503: "unavailable",
}
# codes of refusals that a reporting program tells apart from others of the same status
EXISTS, FENCED = "exists", "fenced"


class ServiceError(Exception):
    """The request is refused with `status`. field: the invalid field. allowed: the values that this field accepts. code: the
    code of the body; None for the status's own code in CODES."""

    status = 500

    def __init__(
        self, message: str, *, field: str | None = None, allowed: str | None = None, headers: Mapping[str, str] | None = None,
        code: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(message)
        self.message, self.field, self.allowed, self.headers, self.code = message, field, allowed, headers, code


class Forbidden(ServiceError):
    status = 403


class NotFound(ServiceError):
    status = 404


class Conflict(ServiceError):
    status = 409


class Invalid(ServiceError):
    status = 422


class TooMany(ServiceError):
    status = 429


class Unavailable(ServiceError):
    status = 503


def error_json(
    status: int, message: str, field: str | None = None, allowed: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """The JSON body of an error."""
    error = {"code": code or CODES.get(status, "error"), "message": message, "field": field, "allowed": allowed}
    return {"error": {key: value for key, value in error.items() if value is not None}}
