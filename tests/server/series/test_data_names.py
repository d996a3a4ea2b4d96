"""A data set's name leads to a file inside the data directory, or is refused."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stablessm_core.spec.config import parse_config
from stablessm_core.spec.data.files import DataError, locate
from stablessm_core.spec.errors import ConfigError
from tests.server.http_service import application, client_of, error_of

HOSTILE = [
    "../secret", "a/../../secret", "/etc/passwd", "//etc/passwd", "~/secret", "~root/x", "..\\secret", "a\\b", "%2e%2e/secret",
    "%252e%252e/secret", "a%00b", "a\0b", "C:/secret", "file:///etc/passwd", "a/./b", "./a", "a//b", "a/", ".", "..", "",
    ".hidden", "a/.hidden", "a;b", "a b", "a\nb", "a|b", "$HOME", "`id`", "\u2025/secret", "\uff0e\uff0e/secret", "a" * 301,
]  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_data_file_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigError):
        parse_config({"task": {"name": "char_lm", "file": name}})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "data"
    (root / "a").mkdir(parents=True)
    (root / "a" / "b").write_text("inside")
    (tmp_path / "secret").write_text("outside")
    (root / "link").symlink_to(tmp_path / "secret")
    (root / "folder").symlink_to(tmp_path)
    return root


parts = st.sampled_from(["a", "b", "link", "folder", "secret", "data", "..", ".", "", "~", "a\\b", "%2e"]) | st.text(max_size=4)


@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(name=st.lists(parts, max_size=5).map("/".join))
@pytest.mark.slow
def test_an_accepted_file_name_never_leads_out_of_the_data_directory(root: Path, name: str) -> None:
    try:
        parse_config({"task": {"name": "char_lm", "file": name}})
        found = locate(root, name)
    except (ConfigError, DataError):
        return
    assert found.read_text() == "inside"


def test_a_link_out_of_the_data_directory_is_refused_without_revealing_its_target(
    sqlite_url: str, tmp_path: Path, root: Path
) -> None:
    with client_of(application(sqlite_url, tmp_path, data_root=root)) as client:
        for name in ("link", "folder/secret"):
            answer: httpx.Response = client.post("/api/runs", json={"task": {"name": "char_lm", "file": name}})
            assert error_of(answer, 422)["field"] == "task.file"
            assert str(tmp_path) not in answer.text
