"""Static files, read and compressed once. Their URLs change with their content, so browsers may cache them forever."""

from __future__ import annotations

import gzip
import hashlib
import mimetypes
import posixpath
import re
from collections.abc import Callable, Iterable
from functools import cached_property
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

from fastapi import APIRouter, Request, Response

from server.errors import NotFound
from web import palette

TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".map": "application/json"}
IMPORT = re.compile(rb'^import\b[^;]*?"(\.[^"]+)";', re.MULTILINE)
FOR_EVER = "private, max-age=31536000, immutable"


class Asset:
    """One file and its compressed form. `read` supplies the bytes at the first request."""

    def __init__(self, name: str, read: Callable[[], bytes]) -> None:
        self._read = read
        kind = TYPES.get(Path(name).suffix) or mimetypes.guess_type(name)[0] or "application/octet-stream"
        self.media_type = kind + ("; charset=utf-8" if kind.startswith("text/") else "")

    @cached_property
    def data(self) -> bytes:
        return self._read()

    @cached_property
    def compressed(self) -> bytes:
        return gzip.compress(self.data, 6)

    def answer(self, request: Request) -> Response:
        headers = {"Cache-Control": FOR_EVER, "Vary": "Accept-Encoding"}
        if "gzip" in request.headers.get("accept-encoding", "") and not self.media_type.startswith(("image/png", "font/")):
            return Response(self.compressed, headers=headers | {"Content-Encoding": "gzip"}, media_type=self.media_type)
        return Response(self.data, headers=headers, media_type=self.media_type)


class Assets:
    """All files under web/static, palette.css from web/palette.py, and plotly.js from its Python package."""

    def __init__(self) -> None:
        root = Path(str(files("web"))) / "static"
        self.files = {str(p.relative_to(root)): Asset(p.name, p.read_bytes) for p in sorted(root.rglob("*")) if p.is_file()}
        self.files["palette.css"] = Asset("palette.css", lambda: palette.stylesheet().encode())
        digest = hashlib.sha256()
        for name, asset in self.files.items():
            digest.update(name.encode() + b"\0" + asset.data + b"\0")
        self.version = digest.hexdigest()[:12]
        self.plotly_version = version("plotly")

    @cached_property
    def plotly(self) -> Asset:
        path = Path(str(files("plotly"))) / "package_data" / "plotly.min.js"
        return Asset(path.name, path.read_bytes)

    @property
    def plotly_url(self) -> str:
        return f"/static/plotly-{self.plotly_version}.min.js"

    def url(self, name: str) -> str:
        """URL of a file of web/static. The version is part of the path, so relative imports stay in the same version."""
        if name not in self.files:
            raise ValueError(f"no static file is named {name!r}")
        return f"/static/{self.version}/{name}"

    def imports(self, names: Iterable[str]) -> list[str]:
        """Modules that `names` import, directly or indirectly. A page preloads them together with its own modules."""
        start = list(names)
        found, known = list(start), set(start)
        for name in found:  # the list grows during this loop
            found += [imported for imported in self._imported[name] if imported not in known]
            known.update(found)
        return found[len(start) :]

    @cached_property
    def _imported(self) -> dict[str, list[str]]:
        """The modules that each module imports directly."""
        return {
            name: [_resolve(name, path.decode()) for path in IMPORT.findall(asset.data)]
            for name, asset in self.files.items()
            if name.endswith(".js")
        }


def _resolve(module: str, path: str) -> str:
    """The file that `module` imports as `path`."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(module), path))


def router(assets: Assets) -> APIRouter:
    routes = APIRouter(prefix="/static", include_in_schema=False)

    @routes.get("/plotly-{version}.min.js")
    def plotly(version: str, request: Request) -> Response:
        if version != assets.plotly_version:
            raise NotFound(f"this server has plotly {assets.plotly_version}", field="version", allowed=assets.plotly_version)
        return assets.plotly.answer(request)

    @routes.get("/{version}/{name:path}")
    def static(version: str, name: str, request: Request) -> Response:
        if version != assets.version or name not in assets.files:
            raise NotFound("this version has no such file; reload the page", field="path")
        return assets.files[name].answer(request)

    return routes
