"""Models that are added while the server runs."""

from pathlib import Path

import pytest

from galley.errors import SettingsError
from galley.gateway.registry import Registry
from galley.settings.config import Settings
from galley.settings.named_models import NamedModel


def test_a_model_that_caches_answers_needs_a_store(tmp_path: Path) -> None:
    models = Registry(Settings(models=(NamedModel("first", {"model": str(tmp_path)}),)))
    own = {"model": str(tmp_path), "response_cache": "exact"}
    with pytest.raises(SettingsError, match=r"response_cache of second is exact.*no store"):
        models.add(NamedModel("second", own))
    assert models.names == ["first"]
    assert models.add(NamedModel("second", {"model": str(tmp_path)})).name == "second"
