"""Every page is rendered from the JSON of its API twin, works without scripts, and loads files only from this server."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urljoin

import httpx
import plotly.offline
import pytest

from server.database.connection import Database
from server.lifecycle import transitions as lifecycle
from tests.server.http_service import BODY, application, client_of, error_of
from tests.server.recording import Recording, claim, nonfinite

pytestmark = [pytest.mark.spread, pytest.mark.slow]

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
    "/paper",
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
def test_every_page_is_rendered_on_the_server(client: httpx.Client, path: str) -> None:
    page = client.get(path, headers={"Accept": "text/html"})
    assert page.status_code == 200, page.text[:500]
    assert page.headers["Content-Type"].startswith("text/html")
    assert page.text.rstrip().endswith("</html>")
    for word in ("Undefined", "undefined", "{{", "{%", "None<"):
        assert word not in re.sub(r"<script.*?</script>", "", page.text, flags=re.DOTALL), (path, word)


def test_every_page_links_to_its_json(client: httpx.Client) -> None:
    for path in ("/", "/runs/1", "/compare?runs=1,2", "/sweeps", "/sweeps/1", "/alerts"):
        twin = re.search(r'<link rel="alternate" type="application/json" href="([^"]+)"', client.get(path).text)
        assert twin is not None, path
        answer = client.get(twin[1].replace("&amp;", "&"))
        assert answer.status_code == 200, twin[1]
        assert answer.json()


def test_the_run_page_shows_the_state_of_the_run_without_scripts(client: httpx.Client) -> None:
    text = client.get("/runs/1").text
    assert "Diverged at step 28, layer 0, eigenvalue 2" in text
    assert re.findall("<title>(.*)</title>", text) == ["diverged · memory reparameterization=direct · StableSSM"]
    assert "Scripts are off" in re.findall(r"<noscript>(.*?)</noscript>", text, re.DOTALL)[0]
    assert "w.grad" in text
    assert "it is NaN" in text
    assert 'data-status="diverged"' in client.get("/").text


def test_pages_load_nothing_from_other_servers(client: httpx.Client) -> None:
    for path in PAGES:
        text = client.get(path).text
        urls = re.findall(r'(?:src|href|action)="([^"]*)"', text)
        assert not [url for url in urls if "//" in url], path
        scripts = re.findall(r"<script([^>]*)>(.*?)</script>", text, re.DOTALL)
        inline = [body for attributes, body in scripts if "json" not in attributes]
        assert not any(body.strip() for body in inline), path


def test_every_static_file_of_a_page_exists_and_is_cached_as_immutable(client: httpx.Client) -> None:
    named = {url for path in PAGES for url in re.findall(r'"(/static/[^"]+)"', client.get(path).text)}
    assert len(named) > 10
    for url in named:
        answer = client.get(url)
        assert answer.status_code == 200, url
        assert "immutable" in answer.headers["Cache-Control"]
        kind = answer.headers["Content-Type"]
        assert kind.startswith({"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}[url.rsplit(".", 1)[1]])


@pytest.mark.parametrize("path", PAGES)
def test_a_page_preloads_exactly_the_modules_that_its_scripts_import(client: httpx.Client, path: str) -> None:
    text = client.get(path).text
    started = re.findall(r'<script type="module" src="([^"]+)"', text)
    preloaded = re.findall(r'<link rel="modulepreload" href="([^"]+)"', text)
    reached: dict[str, None] = dict.fromkeys(started)
    for url in (waiting := list(started)):
        answer = client.get(url)
        assert answer.status_code == 200, url
        imported = [urljoin(url, name) for name in re.findall(r'^(?:import|\}).* from "(.+)";$', answer.text, re.MULTILINE)]
        waiting += [name for name in dict.fromkeys(imported) if name not in reached]
        reached.update(dict.fromkeys(imported))
    assert started or path == "/login"
    assert len(preloaded) == len(set(preloaded))
    assert set(preloaded) == set(reached) - set(started)


def test_the_served_plotly_equals_that_of_the_python_package(client: httpx.Client) -> None:
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
def test_unknown_static_paths_give_404(client: httpx.Client, path: str) -> None:
    version = re.search(r"/static/([0-9a-f]{12})/", client.get("/").text)
    assert version is not None
    error_of(client.get("/static/" + path.format(version=version[1])), 404)


def test_the_form_offers_the_choices_and_valid_defaults_of_the_schema(client: httpx.Client) -> None:
    text = client.get("/new").text
    for name in ("direct", "heavytail", "mnist", "char_lm"):
        assert name in text
    defaults = re.search(r'data-defaults="([^"]+)"', text)
    assert defaults is not None
    config = json.loads(defaults[1].replace("&#34;", '"').replace("&quot;", '"').replace("&#39;", "'"))
    assert client.post("/api/runs", json=config).status_code == 201


def test_an_impossible_comparison_gives_a_page_with_the_reason(client: httpx.Client) -> None:
    page = client.get("/compare?runs=1,99", headers={"Accept": "text/html"})
    assert "99" in page.text
    assert "does not exist" in page.text or "no run" in page.text
    assert page.headers["Content-Type"].startswith("text/html")
