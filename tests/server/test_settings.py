from __future__ import annotations

from pathlib import Path

import pytest

from server.settings import Settings, normalize_url


def test_everything_has_a_default_inside_the_data_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = Settings.from_environment({})
    assert settings.data_dir == tmp_path / ".stablessm"
    assert settings.database_url == f"sqlite:///{tmp_path}/.stablessm/stablessm.db"
    assert settings.data_root == tmp_path / ".stablessm" / "data"
    assert (settings.broker_url, settings.host, settings.port, settings.auth) == (None, "127.0.0.1", 8000, True)


def test_the_command_line_wins_over_the_environment_and_empty_variables_are_unset(tmp_path: Path) -> None:
    environment = {
        "STABLESSM_DATA_DIR": str(tmp_path / "here"),
        "STABLESSM_DATABASE_URL": "postgresql://db/x",
        "STABLESSM_BROKER_URL": "",
        "STABLESSM_DATA": str(tmp_path / "sets"),
        "STABLESSM_TOKEN": "secret",
        "STABLESSM_HOSTS": "a.example, b.example,",
    }
    settings = Settings.from_environment(environment, port=9000, broker_url=None, data_dir=tmp_path / "there")
    assert settings.data_dir == tmp_path / "there"
    assert settings.database_url == "postgresql+psycopg://db/x"
    assert settings.broker_url is None
    assert settings.data_root == tmp_path / "sets"
    assert settings.hosts == ("a.example", "b.example")
    assert settings.port == 9000


def test_a_later_change_of_directory_moves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = Settings(data_dir=Path("state"), data_root=Path("sets"))
    monkeypatch.chdir("/")
    assert settings.data_dir == tmp_path / "state"
    assert settings.data_root == tmp_path / "sets"


def test_the_token_does_not_show_when_settings_are_printed() -> None:
    assert "hush" not in repr(Settings(token="hush"))


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgres://u:p@h/d", "postgresql+psycopg://u:p@h/d"),
        ("postgresql+psycopg://h/d", "postgresql+psycopg://h/d"),
        ("sqlite:////tmp/x.db", "sqlite:////tmp/x.db"),
    ],
)
def test_database_urls_take_the_spellings_people_use(url: str, expected: str) -> None:
    assert normalize_url(url) == expected


@pytest.mark.parametrize("url", ["mysql://h/d", "postgresql+asyncpg://h/d", "stablessm.db", "sqlite://", "sqlite:///:memory:"])
def test_other_databases_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"database URL|must be a file"):
        normalize_url(url)


def test_a_port_out_of_range_is_refused() -> None:
    with pytest.raises(ValueError, match="allowed are 0 to 65535"):
        Settings(port=70_000)
