"""Every page is rendered from the JSON of its twin, works before any script runs, and takes its files from here only."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import plotly.offline
import pytest

from server.database.connection import Database
from server.runs import lifecycle
from tests.server.http_service import BODY, application, client_of, error_of
from tests.server.recording import Recording, claim, nonfinite

PAGES = [
    "/",
    "/runs/1",
    "/compare",
    "/compare?runs=1,2",
    "/compare?q=reparam=best",
    "/sweeps",
    "/sweeps?q=nothing",
    "/sweeps/1",
    "/new",
    "/new?clone=1",
    "/alerts",
    "/workers",
    "/systems",
    "/theory",
    "/theory?run=1&time=discrete&b=2",
    "/docs",
    "/login",
]


@pytest.fixture
def client(sqlite: Database, tmp_path: Path) -> Iterator[httpx.Client]:
    with client_of(application(sqlite.url, tmp_path)) as client:
        grid = {"model.reparameterization.name": ["direct", "best"]}
        client.post("/api/sweeps", json={"base": BODY | {"name": "memory", "train": {"steps": 100}}, "grid": grid})
        recording = Recording(sqlite, claim(sqlite), width=4)
        recording.write(30, [nonfinite("nonfinite_gradient", 28, series="ssm/0/grad_over_weight", layer=0, eigenvalue=2)])
        where = {"step": 28, "layer": 0, "eigenvalue": 2, "tensor": "w.grad", "value": "NaN"}
        with sqlite.write() as session:
            lifecycle.finish(session, 1, 1, "diverged", "gradient is NaN", {"train_loss": float("nan")}, where)
        yield client


@pytest.mark.parametrize("path", PAGES)
def test_every_page_is_rendered_before_any_script(client: httpx.Client, path: str) -> None:
    page = client.get(path, headers={"Accept": "text/html"})
    assert page.status_code == 200, page.text[:500]
    assert page.headers["Content-Type"].startswith("text/html")
    assert page.text.rstrip().endswith("</html>")
    for word in ("Undefined", "undefined", "{{", "{%", "None<"):
        assert word not in re.sub(r"<script.*?</script>", "", page.text, flags=re.DOTALL), (path, word)


def test_the_twin_of_a_page_is_linked_and_is_json(client: httpx.Client) -> None:
    for path in ("/", "/runs/1", "/compare?runs=1,2", "/sweeps", "/sweeps/1", "/alerts"):
        twin = re.search(r'<link rel="alternate" type="application/json" href="([^"]+)"', client.get(path).text)
        assert twin is not None, path
        answer = client.get(twin[1].replace("&amp;", "&"))
        assert answer.status_code == 200, twin[1]
        assert answer.json()


def test_without_scripts_the_page_says_whether_the_run_is_healthy(client: httpx.Client) -> None:
    text = client.get("/runs/1").text
    assert "Diverged at step 28, layer 0, eigenvalue 2" in text
    assert re.findall("<title>(.*)</title>", text) == ["diverged · memory reparameterization=direct · StableSSM"]
    assert "Scripts are off" in re.findall(r"<noscript>(.*?)</noscript>", text, re.DOTALL)[0]
    assert "w.grad" in text
    assert "it is NaN" in text
    assert 'data-status="diverged"' in client.get("/").text


def test_nothing_is_loaded_from_elsewhere(client: httpx.Client) -> None:
    for path in PAGES:
        text = client.get(path).text
        urls = re.findall(r'(?:src|href|action)="([^"]*)"', text)
        assert not [url for url in urls if "//" in url], path
        scripts = re.findall(r"<script([^>]*)>(.*?)</script>", text, re.DOTALL)
        inline = [body for attributes, body in scripts if "json" not in attributes]
        assert not any(body.strip() for body in inline), path


def test_every_file_a_page_names_exists_and_may_be_kept_for_ever(client: httpx.Client) -> None:
    named = {url for path in PAGES for url in re.findall(r'"(/static/[^"]+)"', client.get(path).text)}
    assert len(named) > 10
    for url in named:
        answer = client.get(url)
        assert answer.status_code == 200, url
        assert "immutable" in answer.headers["Cache-Control"]
        kind = answer.headers["Content-Type"]
        assert kind.startswith({"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}[url.rsplit(".", 1)[1]])


def test_modules_import_only_files_that_are_served(client: httpx.Client) -> None:
    version = re.search(r'"(/static/[0-9a-f]{12}/)run\.js"', client.get("/runs/1").text)
    assert version is not None
    script = client.get(version[1] + "run.js").text
    imports = re.findall(r'from "\./([\w.]+)"', script)
    assert imports
    for name in imports:
        assert client.get(version[1] + name).status_code == 200


def test_plotly_is_the_one_of_the_python_package(client: httpx.Client) -> None:
    url = re.search(r'"(/static/plotly-[\d.]+\.min\.js)"', client.get("/runs/1").text)
    assert url is not None
    answer = client.get(url[1], headers={"Accept-Encoding": "gzip"})
    assert answer.headers["Content-Encoding"] == "gzip"
    expected = hashlib.sha256(plotly.offline.get_plotlyjs().encode()).hexdigest()
    assert hashlib.sha256(answer.content).hexdigest() == expected
    plain = client.get(url[1], headers={"Accept-Encoding": "identity"})
    assert "Content-Encoding" not in plain.headers
    assert len(gzip.compress(plain.content)) < len(plain.content) / 2


@pytest.mark.parametrize(
    "path", ["x/base.css", "plotly-1.0.0.min.js", "{version}/none.js", "{version}/../app.py", "{version}/%2e%2e/pages.py"]
)
def test_other_static_paths_are_404(client: httpx.Client, path: str) -> None:
    version = re.search(r"/static/([0-9a-f]{12})/", client.get("/").text)
    assert version is not None
    error_of(client.get("/static/" + path.format(version=version[1])), 404)


def test_the_form_offers_what_the_schema_allows(client: httpx.Client) -> None:
    text = client.get("/new").text
    for name in ("direct", "heavytail", "mnist", "char_lm"):
        assert name in text
    defaults = re.search(r'data-defaults="([^"]+)"', text)
    assert defaults is not None
    config = json.loads(defaults[1].replace("&#34;", '"').replace("&quot;", '"').replace("&#39;", "'"))
    assert client.post("/api/runs", json=config).status_code == 201


def test_a_comparison_that_cannot_be_made_is_a_page_that_says_why(client: httpx.Client) -> None:
    page = client.get("/compare?runs=1,99", headers={"Accept": "text/html"})
    assert "99" in page.text
    assert "does not exist" in page.text or "no run" in page.text
    assert page.headers["Content-Type"].startswith("text/html")
