"""Static files: read once, compressed once, under URLs that change with their content, so browsers may keep them for ever."""

from __future__ import annotations

import gzip
import hashlib
import mimetypes
from functools import cached_property
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

from fastapi import APIRouter, Request, Response

from server.errors import NotFound

TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".map": "application/json"}
FOR_EVER = "private, max-age=31536000, immutable"


class Asset:
    """One file: its bytes, read when first asked for, and their compressed form."""

    def __init__(self, path: Path) -> None:
        self.path = path
        kind = TYPES.get(path.suffix) or mimetypes.guess_type(path.name)[0] or "application/octet-stream"
        self.media_type = kind + ("; charset=utf-8" if kind.startswith("text/") else "")

    @cached_property
    def data(self) -> bytes:
        return self.path.read_bytes()

    @cached_property
    def compressed(self) -> bytes:
        return gzip.compress(self.data, 6)

    def answer(self, request: Request) -> Response:
        headers = {"Cache-Control": FOR_EVER, "Vary": "Accept-Encoding"}
        if "gzip" in request.headers.get("accept-encoding", "") and not self.media_type.startswith(("image/png", "font/")):
            return Response(self.compressed, headers=headers | {"Content-Encoding": "gzip"}, media_type=self.media_type)
        return Response(self.data, headers=headers, media_type=self.media_type)


class Assets:
    """Everything under web/static, and plotly.js from the Python package."""

    def __init__(self) -> None:
        root = Path(str(files("web"))) / "static"
        self.files = {str(p.relative_to(root)): Asset(p) for p in sorted(root.rglob("*")) if p.is_file()}
        digest = hashlib.sha256()
        for name, asset in self.files.items():
            digest.update(name.encode() + b"\0" + asset.data + b"\0")
        self.version = digest.hexdigest()[:12]
        self.plotly_version = version("plotly")

    @cached_property
    def plotly(self) -> Asset:
        return Asset(Path(str(files("plotly"))) / "package_data" / "plotly.min.js")

    @property
    def plotly_url(self) -> str:
        return f"/static/plotly-{self.plotly_version}.min.js"

    def url(self, name: str) -> str:
        """URL of a file of web/static; the version is a folder, so relative imports between modules stay within it."""
        if name not in self.files:
            raise ValueError(f"there is no static file {name!r}")
        return f"/static/{self.version}/{name}"


def router(assets: Assets) -> APIRouter:
    routes = APIRouter(prefix="/static", include_in_schema=False)

    @routes.get("/plotly-{version}.min.js")
    def plotly(version: str, request: Request) -> Response:
        if version != assets.plotly_version:
            raise NotFound(f"plotly here is {assets.plotly_version}", field="version", allowed=assets.plotly_version)
        return assets.plotly.answer(request)

    @routes.get("/{version}/{name:path}")
    def static(version: str, name: str, request: Request) -> Response:
        if version != assets.version or name not in assets.files:
            raise NotFound("there is no such file in this version; reload the page", field="path")
        return assets.files[name].answer(request)

    return routes
