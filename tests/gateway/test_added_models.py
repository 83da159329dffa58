"""Models that are added and unloaded while the server runs."""

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from galley.errors import Conflict, RequestError, SettingsError
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


def test_a_model_that_compares_questions_needs_an_embedding_model(tmp_path: Path) -> None:
    first = NamedModel("first", {"model": str(tmp_path)})
    store = str(tmp_path / "answers.sqlite")
    models = Registry(Settings(models=(first,), response_cache_store=store))
    own = {"model": str(tmp_path), "response_cache": "semantic"}
    with pytest.raises(SettingsError, match=r"response_cache of second is semantic.*compares no"):
        models.add(NamedModel("second", own))
    assert models.names == ["first"]


def test_a_model_that_is_not_loaded_yet_does_not_make_requests_wait(tmp_path: Path) -> None:
    first = NamedModel("first", {"model": str(tmp_path)})
    models = Registry(Settings(models=(first,), load_on_request=True))
    models.add(NamedModel("second", {"model": str(tmp_path)}))
    with pytest.raises(RequestError, match="choose one in the field model"):
        asyncio.run(models.find(None))


def test_a_model_that_is_being_loaded_cannot_be_unloaded(tmp_path: Path) -> None:
    [model] = Registry(Settings(model=str(tmp_path)))

    async def unload() -> None:
        start = asyncio.create_task(model.start())
        await asyncio.sleep(0)
        with pytest.raises(Conflict, match="is being loaded"):
            await model.withdraw()
        start.cancel()
        with suppress(asyncio.CancelledError):
            await start

    asyncio.run(unload())
    assert model.withdrawn is None
