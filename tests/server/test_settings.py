from __future__ import annotations

import os
from pathlib import Path

import pytest

from server.settings import Settings, normalize_url


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("STABLESSM_")]:
        monkeypatch.delenv(name)


def test_default_paths_are_inside_the_data_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = Settings.from_environment()
    assert settings.data_dir == tmp_path / ".stablessm"
    assert settings.database_url == f"sqlite:///{tmp_path}/.stablessm/stablessm.db"
    assert settings.data_root == tmp_path / ".stablessm" / "data"
    assert (settings.broker_url, settings.host, settings.port, settings.auth) == (None, "127.0.0.1", 8000, True)


def test_options_override_environment_variables_and_empty_variables_count_as_unset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {
        "STABLESSM_DATA_DIR": str(tmp_path / "here"),
        "STABLESSM_DATABASE_URL": "postgresql://db/x",
        "STABLESSM_BROKER_URL": "",
        "STABLESSM_DATA": str(tmp_path / "sets"),
        "STABLESSM_TOKEN": "secret",
        "STABLESSM_HOSTS": "A.example, b.example,",
        "STABLESSM_AUDIT_DAYS": "7",
        "STABLESSM_LEASE_SECONDS": "6.5",
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    settings = Settings.from_environment(port=9000, broker_url=None, data_dir=tmp_path / "there", token="shown")
    assert settings.data_dir == tmp_path / "there"
    assert settings.database_url == "postgresql+psycopg://db/x"
    assert settings.broker_url is None
    assert settings.data_root == tmp_path / "sets"
    assert settings.hosts == ("a.example", "b.example")
    assert (settings.port, settings.token, settings.audit_days, settings.lease_seconds) == (9000, "shown", 7, 6.5)
    assert Settings.from_environment(data_root=tmp_path).data_root == tmp_path


def test_address_and_authentication_are_not_read_from_environment_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    # Kubernetes sets variables such as this PORT.
    for name, value in {"PORT": "tcp://10.0.0.1:8000", "HOST": "0.0.0.0", "AUTH": "0"}.items():
        monkeypatch.setenv(f"STABLESSM_{name}", value)
    settings = Settings.from_environment()
    assert (settings.port, settings.host, settings.auth) == (8000, "127.0.0.1", True)


@pytest.mark.parametrize(
    ("variable", "given", "said"),
    [
        ("STABLESSM_RUNS_PER_MINUTE", "abc", "'abc'; allowed: whole numbers from 0 to 1000000"),
        ("STABLESSM_RUNS_PER_MINUTE", "1.5", "'1.5'; allowed: whole numbers from 0 to 1000000"),
        ("STABLESSM_RUNS_PER_MINUTE", "2000000", "2000000; allowed: 0 to 1000000"),
        ("STABLESSM_AUDIT_DAYS", "0", "0; allowed: 1 to 1000000"),
        ("STABLESSM_LEASE_SECONDS", "x" * 100, f"'{'x' * 40}'; allowed: numbers from 6 to 600"),
        ("STABLESSM_LEASE_SECONDS", "nan", "nan; allowed: 6 to 600"),
        ("STABLESSM_AUTOPSY", "maybe", "'maybe'; allowed: on, off"),
    ],
)
def test_a_variable_out_of_its_limits_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch, variable: str, given: str, said: str
) -> None:
    monkeypatch.setenv(variable, given)
    with pytest.raises(ValueError) as refused:  # noqa: PT011 - compared in full below
        Settings.from_environment()
    assert str(refused.value) == f"{variable} is {said}"


def test_an_error_about_a_database_url_does_not_contain_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STABLESSM_DATABASE_URL", "mysql://user:hush@db/x")
    with pytest.raises(ValueError, match="database URL starts with 'mysql'") as refused:
        Settings.from_environment()
    assert "hush" not in str(refused.value)


def test_a_later_change_of_directory_does_not_change_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = Settings(data_dir=Path("state"), data_root=Path("sets"))
    monkeypatch.chdir("/")
    assert settings.data_dir == tmp_path / "state"
    assert settings.data_root == tmp_path / "sets"


def test_the_repr_of_the_settings_does_not_contain_the_token() -> None:
    assert "hush" not in repr(Settings(token="hush"))


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgres://u:p@h/d", "postgresql+psycopg://u:p@h/d"),
        ("postgresql+psycopg://h/d", "postgresql+psycopg://h/d"),
        ("sqlite:////tmp/x.db", "sqlite:////tmp/x.db"),
    ],
)
def test_common_spellings_of_database_urls_are_accepted(url: str, expected: str) -> None:
    assert normalize_url(url) == expected


@pytest.mark.parametrize("url", ["mysql://h/d", "postgresql+asyncpg://h/d", "stablessm.db", "sqlite://", "sqlite:///:memory:"])
def test_unsupported_databases_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"database URL|must be a file"):
        normalize_url(url)


def test_a_port_out_of_range_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^port is 70000; allowed: 0 to 65535$"):
        Settings.from_environment(port=70_000)
