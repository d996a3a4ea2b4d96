"""The pages in a real Chromium with a real installation: submit a run, watch it live, see it diverge, and compare runs.

All tests share one installation and one browser. A test may use the runs that earlier tests of this file have created.
"""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.installation import Installation, hold_port

pytestmark = [pytest.mark.slow, pytest.mark.browser, pytest.mark.timeout(600)]

CURVE = {"task": {"name": "polynomial_memory", "length": 60}, "model": {"d_model": 8, "d_state": 16}, "train": {"batch_size": 8}}
DIVERGING = {
    "name": "diverges",
    **CURVE,
    "model": {**CURVE["model"], "reparameterization": {"name": "direct"}, "activation": "identity"},
    "optimizer": {"lr": 1.0, "warmup_steps": 2000},  # the rate rises until the numbers overflow, however they are rounded
}


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with hold_port() as held:
        made = Installation(tmp_path_factory.mktemp("browser") / "state", held.getsockname()[1])
        try:
            up(made)
            made.wait_until_ready()
            yield made
        finally:
            made.kill_all()


@pytest.fixture(scope="module")
def context(browser: Any, installation: Installation) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 1280, "height": 1000}, reduced_motion="reduce")
    context.set_default_timeout(150_000)
    page = context.new_page()
    token = (installation.data_dir / "token").read_text().strip()
    page.goto(f"{installation.url}/?token={token}")
    assert "token" not in page.url, "the token must not stay in the address bar"
    page.close()
    yield context
    context.close()


@pytest.fixture
def page(context: Any, installation: Installation) -> Iterator[Any]:
    """A browser page. The test fails on any script error, refused resource or request to another machine."""
    page = context.new_page()
    trouble: list[str] = []
    page.on("pageerror", lambda error: trouble.append(f"script error: {error}"))
    page.on("console", lambda message: trouble.append(message.text) if message.type == "error" else None)
    page.on("request", lambda r: None if r.url.startswith((installation.url, "data:", "blob:")) else trouble.append(r.url))
    page.trouble = trouble
    page.forgiven = []  # parts of expected messages, some of which arrive after the page has shown their cause
    yield page
    page.close()
    assert not [one for one in trouble if not any(part in one for part in page.forgiven)]


def up(installation: Installation) -> None:
    installation.start("up", "--port", str(installation.port), "--data-dir", str(installation.data_dir))


def submit(installation: Installation, config: dict[str, Any]) -> int:
    with installation.client() as client:
        return int(client.post("/api/runs", json=config).raise_for_status().json()["id"])


def becomes(page: Any, expression: str) -> None:
    """Wait until the JavaScript expression is true. Polls from Python, because the pages' security policy forbids eval."""
    eventually(page, lambda: page.evaluate(f"() => {expression}"), expression)


def eventually(page: Any, ask: Callable[[], Any], what: str, seconds: float = 150.0) -> None:
    """Wait until `ask` returns a true value, because a page updates with a delay."""
    deadline = time.monotonic() + seconds
    while not ask():
        assert time.monotonic() < deadline, f"this did not become true: {what}"
        page.wait_for_timeout(50)


def drawn_step(page: Any, step: int) -> None:
    """Wait until the charts show `step`."""
    becomes(page, f"Number(document.documentElement.dataset.lastStep) >= {step}")


def trace(page: Any, chart: str, name: str) -> dict[str, Any]:
    """A trace of a drawn chart from Plotly's data, with x and y as lists."""
    found: dict[str, Any] | None = page.evaluate(
        """([chart, name]) => {
          const t = document.querySelector(`[data-chart="${chart}"]`).data?.find((t) => t.name === name);
          return t ? {x: Array.from(t.x ?? []), y: Array.from(t.y ?? []), type: t.type} : null;
        }""",
        [chart, name],
    )
    assert found is not None, f"chart {chart} has no trace {name!r}"
    return found


def test_an_empty_list_of_runs_links_to_the_submit_form(page: Any, installation: Installation) -> None:
    page.goto(installation.url)
    page.get_by_text("No runs yet").wait_for()
    page.get_by_role("link", name="Submit a run").click()
    page.wait_for_url("**/new")


def test_a_run_submitted_with_the_form_is_drawn_live(page: Any, installation: Installation) -> None:
    page.goto(f"{installation.url}/new")
    page.locator('[data-path="name"]').fill("from the form")
    page.locator('[data-path="task.name"]').select_option("polynomial_memory")
    page.locator('[data-path="model.reparameterization.name"]').select_option("exp")
    page.locator('[data-path="model.d_model"]').fill("8")
    page.locator('[data-path="model.d_state"]').fill("16")
    page.locator('[data-path="train.batch_size"]').fill("8")
    page.locator('[data-path="train.steps"]').fill("200000")  # so many that the run cannot end before the test has checked it
    page.get_by_text("Queue and priority").click()
    page.locator('[data-place="priority"]').fill("7")
    page.get_by_role("button", name="Submit run").click()
    page.wait_for_url(re.compile(r"/runs/\d+$"))
    with installation.client() as client:
        run = client.get("/api/runs/1").raise_for_status().json()
    assert (run["priority"], run["queue"]) == (7, "default")
    drawn_step(page, 1)
    early = page.evaluate("Number(document.documentElement.dataset.lastStep)")
    page.locator('[data-stream="live"]').wait_for()
    drawn_step(page, early + 1000)
    loss = trace(page, "loss", "train")
    assert loss["x"][0] == 1
    assert loss["x"] == sorted(set(loss["x"]))
    page.locator("#log > summary").click()
    page.locator("[data-log-text]", has_text="training on").wait_for()
    with installation.client() as client:
        client.post("/api/runs/1/cancel").raise_for_status()
        last = installation.wait_for_end(client, 1)["step"]
    page.locator('[data-status="cancelled"]').first.wait_for()
    page.locator("[data-log-text]", has_text="training ended: cancelled").wait_for()  # the page reads the log to its end
    page.locator("[data-timeline] li", has_text="cancel requested").wait_for()
    page.locator(f'[data-part="checkpoints"] a[href$="/checkpoints/{last}"]').wait_for()
    page.locator('[data-chart="loss"]').scroll_into_view_if_needed()
    drawn_step(page, last)


def test_the_heatmap_has_a_row_for_every_eigenvalue(page: Any, installation: Installation) -> None:
    page.goto(f"{installation.url}/runs/1")
    page.locator('[data-chart="grad_over_weight_heatmap"]').scroll_into_view_if_needed()
    becomes(page, "document.querySelector('[data-chart=\"grad_over_weight_heatmap\"]').dataset.drawn")
    shape = page.evaluate(
        """() => { const z = document.querySelector('[data-chart="grad_over_weight_heatmap"]').data[0].z;
                   return [z.length ?? Number(z.shape.split(",")[0]), (z[0] ?? []).length]; }"""
    )
    assert shape[0] == 16
    assert 100 < shape[1] <= 1000


def test_the_open_page_of_a_diverging_run_shows_its_verdict_and_alerts(page: Any, installation: Installation) -> None:
    run = submit(installation, {**DIVERGING, "train": {**DIVERGING["train"], "steps": 5000}})
    page.goto(f"{installation.url}/runs/{run}")
    page.locator('[data-verdict="diverged"]').wait_for()
    page.locator('.status[data-status="diverged"]').wait_for()  # the badge has the colour of its status
    becomes(page, "document.title === 'diverged · diverges · StableSSM'")
    with installation.client() as client:
        told = client.get(f"/api/runs/{run}").json()
        alerts = client.get(f"/api/runs/{run}/alerts").json()["alerts"]
    assert f"Diverged at step {told['divergence']['step']}" in page.locator('[data-verdict="diverged"]').inner_text()
    reasons = page.locator("#why").inner_text()
    assert "What happened" in reasons
    assert "What to try" in reasons
    page.locator('[data-alerts] [data-severity="critical"]').first.wait_for()
    eventually(page, lambda: page.locator("[data-alerts] li").count() == len(alerts), f"{len(alerts)} alerts in the list")
    becomes(page, "document.querySelector('[data-chart=\"loss\"]').dataset.drawn")

    def marked() -> list[float]:
        return [x for name in ("critical alert", "warning alert") for x in trace(page, "loss", name)["x"] if x is not None]

    if all(a["series"] == "train/loss" for a in alerts):
        eventually(page, lambda: told["divergence"]["step"] in marked(), "a mark at the fatal step")


def test_non_finite_values_are_marked_in_the_charts(page: Any, installation: Installation) -> None:
    page.goto(f"{installation.url}/runs/2")
    becomes(page, "document.querySelector('[data-chart=\"loss\"]').dataset.drawn")
    with installation.client() as client:
        loss = client.get("/api/runs/2/series/train/loss").json()
        ratio = client.get("/api/runs/2/series/ssm/0/grad_over_weight").json()
    bad = [s for s, v in zip(loss["step"], loss["value"], strict=True) if isinstance(v, str)]
    rows = [s for s, v in zip(ratio["step"], ratio["value"], strict=True) if any(isinstance(x, str) for x in v)]
    assert bad or rows
    eventually(page, lambda: [x for x in trace(page, "loss", "NaN / Inf")["x"] if x is not None] == bad, f"marks at {bad}")
    page.locator('[data-chart="grad_over_weight"]').scroll_into_view_if_needed()
    becomes(page, "document.querySelector('[data-chart=\"grad_over_weight\"]').dataset.drawn")

    def marked() -> list[float]:
        return sorted({x for x in trace(page, "grad_over_weight", "NaN / Inf")["x"] if x is not None})

    eventually(page, lambda: marked() == rows, f"marks at {rows}")


def test_two_runs_selected_in_the_list_are_compared(page: Any, installation: Installation) -> None:
    page.goto(installation.url)
    for run in (1, 2):
        page.locator(f'[data-run="{run}"] input[type="checkbox"]').check()
    page.get_by_role("button", name=re.compile("Compare")).click()
    page.wait_for_url(re.compile(r"/compare\?runs="))
    becomes(page, "document.querySelector('[data-chart=\"compare_loss\"]').dataset.drawn")
    lines = page.evaluate("document.querySelector('[data-chart=\"compare_loss\"]').data.filter((t) => t.mode === 'lines').length")
    assert lines == 2
    text = page.locator("main").inner_text()
    assert "model.reparameterization.name" in text
    assert "model.d_state" not in text, "a setting that is equal in all runs must not be listed as a difference"


def test_an_error_of_the_server_is_shown_at_its_form_field(page: Any, installation: Installation) -> None:
    page.goto(f"{installation.url}/new")
    page.locator('[data-path="train.steps"]').fill("-3")
    page.get_by_role("button", name="Submit run").click()
    error = page.locator('[data-error-for="train.steps"]')
    error.wait_for()
    page.forgiven.append("422")  # the browser itself logs the refused request
    assert ">= 1" in error.inner_text() or "greater than or equal to 1" in error.inner_text()


@pytest.mark.parametrize("path", ["/", "/runs/1", "/runs/2", "/compare?runs=1,2", "/new", "/alerts", "/theory", "/paper"])
def test_every_page_fits_a_phone_screen(page: Any, installation: Installation, path: str) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{installation.url}{path}")
    page.wait_for_load_state("networkidle") if path != "/runs/1" else page.wait_for_load_state()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_the_page_shows_a_lost_server_and_its_stream_resumes_afterwards(page: Any, installation: Installation) -> None:
    run = submit(installation, {**CURVE, "train": {**CURVE["train"], "steps": 100_000}})
    page.goto(f"{installation.url}/runs/{run}")
    drawn_step(page, 20)
    installation.stop(installation.processes[-1], signal.SIGTERM)
    page.locator('[data-stream="reconnecting"], [data-stream="polling"]').wait_for()
    before = page.evaluate("Number(document.documentElement.dataset.lastStep)")
    up(installation)
    page.locator('[data-stream="live"]').wait_for()
    drawn_step(page, before + 20)
    steps = trace(page, "loss", "train")["x"]
    assert steps == sorted(set(steps))
    page.trouble.clear()  # errors of connections that were refused while the server was down
    page.forgiven += ["Failed to load resource", "net::ERR_"]
    with installation.client() as client:
        client.post(f"/api/runs/{run}/cancel")


def test_no_chart_offers_to_upload_data(page: Any, installation: Installation) -> None:
    page.goto(f"{installation.url}/runs/1")
    becomes(page, "document.querySelector('[data-chart=\"loss\"]').dataset.drawn")
    titles = page.evaluate("[...document.querySelectorAll('.modebar-btn')].map((b) => b.dataset.title ?? '')")
    assert titles
    assert not [t for t in titles if re.search("share|cloud|chart studio|edit", t, re.IGNORECASE)]


HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script> {{7*7}} "
TURNED = "\u202eesrever \u2067x"  # reverses the text that follows, unless that text is isolated
LONG = "unbroken" * 20


def test_hostile_names_are_shown_as_text_on_every_page(page: Any, installation: Installation) -> None:
    with installation.client() as client:
        for name in (HOSTILE, TURNED, LONG):
            tiny = {**DIVERGING, "name": name[:200], "tags": [name[:40]], "train": {"batch_size": 8, "steps": 60}}
            run = installation.wait_for_end(client, int(client.post("/api/runs", json=tiny).raise_for_status().json()["id"]))[
                "id"
            ]
            client.patch(f"/api/runs/{run}", json={"notes": name * 20}).raise_for_status()
    page.on("dialog", lambda dialog: page.trouble.append(dialog.message))
    page.set_viewport_size({"width": 390, "height": 844})
    runs = ",".join(str(i) for i in (run - 2, run - 1, run))
    paths = [
        "/",
        *(f"/runs/{i}" for i in runs.split(",")),
        f"/compare?runs={runs}",
        "/alerts",
        "/workers",
        "/access",
        "/webhooks",
        f"/new?clone={run - 2}",
    ]
    for path in [*paths, f'/?q=name~"{HOSTILE[:4]}"']:
        page.goto(f"{installation.url}{path}")
        page.wait_for_load_state("networkidle") if "/runs/" not in path else becomes(
            page, "document.querySelector('.modebar-btn')"
        )
        assert "owned" not in page.title().replace(HOSTILE, ""), path
        assert page.evaluate("document.querySelectorAll('img, main script').length") == 0, path
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, path
        assert page.evaluate(OPEN_TO_REVERSAL) == [], path


# Text that reverses its surroundings must be in an element with isolated text direction.
OPEN_TO_REVERSAL = r"""() => {
  const open = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.includes('\u202e')) continue;
    if (element.closest('script, textarea, option, svg')) continue;  // these elements lay out each text separately
    const style = getComputedStyle(element);
    const alone = style.display !== 'inline' && element.childNodes.length === 1;
    if (!alone && !/isolate|plaintext/.test(style.unicodeBidi)) open.push(element.outerHTML.slice(0, 200));
  }
  return open;
}"""
