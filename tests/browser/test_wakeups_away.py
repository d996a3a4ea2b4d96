"""Without Redis, the run page polls and says so. When Redis returns, the page reports live updates again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import httpx
import pytest

from server.database.connection import Database
from server.lifecycle import transitions as lifecycle
from stablessm_core.spec.config import parse_config
from tests.chaos.services import Missing, Redis
from tests.installation import Installation, hold_port

pytestmark = [pytest.mark.slow, pytest.mark.browser, pytest.mark.postgres, pytest.mark.redis, pytest.mark.timeout(600)]


@pytest.fixture
def redis_server(tmp_path: Path, unavailable: Callable[[str], NoReturn]) -> Iterator[Redis]:
    try:
        redis = Redis(tmp_path / "redis")
    except Missing as error:
        unavailable(str(error))
    redis.start()
    yield redis
    redis.kill()


@pytest.fixture
def site(tmp_path: Path, postgres_url: str, redis_server: Redis) -> Iterator[Installation]:
    """A server without a worker, because this test needs no training."""
    with hold_port() as held:
        made = Installation(tmp_path / "state", held.getsockname()[1], token="token-of-the-tests-0123456789")
        made.environment["STABLESSM_TOKEN"] = str(made.token)
        broker = f"redis://127.0.0.1:{redis_server.port}/0"
        try:
            made.start(
                "serve", "--port", str(made.port), "--data-dir", str(made.data_dir),
                "--database-url", postgres_url, "--broker-url", broker,
            )  # fmt: skip
            yield made
        finally:
            made.kill_all()


def test_the_page_reports_polling_without_redis_and_still_shows_changes(
    browser: Any, site: Installation, redis_server: Redis, postgres_url: str
) -> None:
    def ready() -> bool:
        try:
            with site.client() as client:
                return bool(client.get("/readyz").json()["checks"]["live"] == "push")
        except (httpx.TransportError, KeyError):
            return False

    site.wait("a server that receives wake-ups", ready)
    database = Database(postgres_url)
    with database.write() as session:
        run = lifecycle.submit(session, parse_config({"task": {"name": "polynomial_memory"}})).id
    context = browser.new_context()
    context.set_default_timeout(150_000)
    page = context.new_page()
    page.goto(f"{site.url}/?token={site.token}")
    page.goto(f"{site.url}/runs/{run}")
    page.locator("[data-stream=live]").wait_for()
    redis_server.kill()
    page.locator("[data-stream=slow]", has_text="polling every 2 s").wait_for()
    with database.write() as session:
        lifecycle.claim(session, "tester", {"devices": ["cpu"], "data": {}})  # without Redis, the server receives no wake-up
    page.locator(".status[data-status=running]").wait_for()
    page.reload()
    page.locator("[data-stream=slow]").wait_for()
    redis_server.start()
    page.locator("[data-stream=live]").wait_for()
    context.close()
    database.close()
