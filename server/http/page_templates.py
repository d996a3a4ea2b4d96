"""The templates of the pages, and the context that each template receives."""

from __future__ import annotations

from copy import copy
from importlib.resources import files
from pathlib import Path
from typing import Any

from fastapi import Request
from fastapi.responses import HTMLResponse, Response
from jinja2 import Environment, FileSystemLoader

from server.access.tokens import Principal
from server.errors import ServiceError, error_json
from server.http.assets import Assets
from server.http.content_policy import policy_with_inline
from stablessm_core import __version__
from web.formatting import FILTERS


class Pages:
    """The templates, with their shared context."""

    administers = False  # whether the pages link to what only administrators may see

    def __init__(self, assets: Assets) -> None:
        folder = Path(str(files("web"))) / "templates"
        self.assets = assets
        self.templates = Environment(loader=FileSystemLoader(folder), autoescape=True)
        self.templates.filters.update(FILTERS)

    def render(
        self, template: str, *, title: str, json_url: str | None = None, status: int = 200, **context: Any
    ) -> HTMLResponse:
        page = template.removesuffix(".html")
        html = self.templates.get_template(template).render(
            page=page, title=title, json_url=json_url, version=__version__, assets=self.assets.url,
            imports=self.assets.imports, plotly_url=self.assets.plotly_url,
            administers=self.administers, **context,
        )  # fmt: skip
        return HTMLResponse(html, status)

    def error(self, request: Request, status: int, error: dict[str, Any], headers: dict[str, str]) -> Response:
        if status == 401:
            answer = self.login(request.url.path, error=None, status=401)
        else:
            answer = self.render("error.html", title=str(status), status=status, error=error)
        answer.headers.update(headers)
        return answer

    def login(self, next_path: str, *, error: str | None, status: int = 200) -> HTMLResponse:
        # static files also need a token, so this page has its own style element
        answer = self.render("login.html", title="Sign in", status=status, error=error, next=next_path)
        answer.headers["Content-Security-Policy"] = policy_with_inline(bytes(answer.body).decode())
        return answer


def pages_of(request: Request) -> Pages:
    """The templates for the sender of this request."""
    pages: Pages = copy(request.app.state.pages)
    principal: Principal | None = getattr(request.state, "principal", None)
    pages.administers = principal is not None and principal.may("admin")
    return pages


def refusal_json(error: ServiceError) -> dict[str, Any]:
    """The error as JSON, for a page that shows it beside the filter field. `position` and `length` mark the invalid part of the
    filter."""
    shown: dict[str, Any] = error_json(error.status, error.message, error.field, error.allowed)["error"]
    return {"field": None} | shown | {name: getattr(error, name, 0) for name in ("position", "length")}
