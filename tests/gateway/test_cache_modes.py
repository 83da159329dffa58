"""Settings and tenants whose response cache the server does not have are refused when they are read."""

from pathlib import Path
from typing import Any

import pytest

from galley.errors import SettingsError
from galley.gateway.tenants import Tenants
from galley.settings.cache import check_used
from galley.settings.config import Settings
from galley.settings.named_models import NamedModel
from tests.server.key_files import KeyFile, key_of

STORE: dict[str, Any] = {"response_cache_store": "answers.sqlite"}
SEMANTIC: dict[str, Any] = {"semantic_cache_model": "vectors", "semantic_cache_threshold": 0.9}


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (SEMANTIC, "no response cache uses semantic_cache_model, semantic_cache_threshold: "),
        (
            {"response_cache_pace": 30.0, "response_cache_bytes": 1 << 20},
            "uses response_cache_bytes, ",
        ),
        ({"response_cache_entries": 5}, "no response cache uses response_cache_entries"),
        ({"response_cache_seconds": 60.0}, "no response cache uses response_cache_seconds"),
        ({"semantic_cache_checked": 0}, "no response cache uses semantic_cache_checked"),
        (STORE | {"semantic_cache_turns": 1}, "nothing uses semantic_cache_turns without"),
        (
            {"response_cache": "exact", "semantic_cache_url": "http://h"},
            "nothing uses semantic_cache_url without semantic_cache_model",
        ),
        (
            STORE | SEMANTIC | {"semantic_cache_api_key": "secret"},
            "semantic_cache_api_key is given, but no semantic_cache_url",
        ),
    ],
)
def test_settings_that_nothing_uses_are_named(given: dict[str, Any], error: str) -> None:
    settings = Settings(**given)
    with pytest.raises(SettingsError, match=error) as refused:
        check_used(settings, settings.cache_modes)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    "given",
    [
        {},
        STORE | {"response_cache_pace": 30.0, "response_cache_seconds": 60.0},
        STORE | SEMANTIC,
        {"response_cache": "exact", **SEMANTIC},
        {"models": (NamedModel("one", {"response_cache": "semantic"}),), **SEMANTIC},
    ],
)
def test_settings_that_requests_or_a_model_use_are_accepted(given: dict[str, Any]) -> None:
    settings = Settings(**given)
    check_used(settings, settings.cache_modes)


@pytest.mark.parametrize(
    ("given", "mode", "error"),
    [
        ({}, "exact", "is exact, but this server has no store"),
        ({}, "semantic", "is semantic, but this server has no store"),
        (STORE, "semantic", "is semantic, but this server compares no questions"),
    ],
)
def test_a_tenant_whose_cache_the_server_does_not_have_is_refused(
    tmp_path: Path, given: dict[str, Any], mode: str, error: str
) -> None:
    keys = KeyFile(tmp_path / "keys", one={}, two={"response_cache": mode})
    with pytest.raises(SettingsError, match=f"response_cache of tenant 'two' {error}"):
        Tenants.load(Settings(api_key_file=str(keys.path), **given))


def test_it_is_refused_when_the_file_is_read_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = KeyFile(tmp_path / "keys", one={"response_cache": "exact"})
    tenants = Tenants.load(Settings(api_key_file=str(keys.path), **STORE))
    keys.tenants["one"]["response_cache"] = "semantic"
    keys.write()
    assert not tenants.reload()
    assert "the keys are unchanged" in caplog.text
    assert "compares no questions" in caplog.text
    account = tenants.identify(key_of("one"))
    assert account is not None
    assert account.tenant.response_cache == "exact"


@pytest.mark.parametrize("mode", ["off", "exact", "semantic"])
def test_a_tenant_may_have_what_the_server_has(tmp_path: Path, mode: str) -> None:
    keys = KeyFile(tmp_path / "keys", one={"response_cache": mode})
    given = STORE | SEMANTIC
    account = Tenants.load(Settings(api_key_file=str(keys.path), **given)).identify(key_of("one"))
    assert account is not None
    assert account.tenant.response_cache == mode
