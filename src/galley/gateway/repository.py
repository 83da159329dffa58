"""Loads and unloads models while the server runs, and finds their versions."""

from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

from galley.errors import GalleyError, ModelNotFound, UnknownModel
from galley.formats.model_repository import read_model
from galley.gateway.registry import Registry
from galley.gateway.served import ServedModel
from galley.settings.named_models import NamedModel

State = Literal["READY", "LOADING", "UNAVAILABLE"]


class Entry(NamedTuple):
    """A version of a model, and whether requests to it are answered; ``reason``: why not."""

    name: str
    version: str
    state: State
    reason: str


def entries(models: Registry) -> Iterator[Entry]:
    """Yield each version of each model. A model that is loaded on request is ready."""
    for served in models:
        state: State = "READY"
        if served.withdrawn is not None:
            state = "UNAVAILABLE"
        elif served.is_ready is False:
            state = "LOADING" if served.state == "starting" else "UNAVAILABLE"
        yield Entry(served.base_name, served.version, state, served.withdrawn or "")


def versions(models: Registry, name: str) -> list[str]:
    """Return the versions of a model, the lowest first."""
    return sorted((one.version for one in _versions(models, name)), key=int)


def find_version(models: Registry, name: str, version: str = "") -> ServedModel:
    """Return a version of a model, loaded or not; the latest one if none is named.

    Raises:
        UnknownModel: there is no such model or version.
    """
    served = models.named(name)
    if version in ("", served.version):
        return served
    for other in _versions(models, name):
        if other.version == version:
            return other
    has = ", ".join(versions(models, name))
    raise UnknownModel(f"The model {name!r} has no version {version[:40]!r}; it has version {has}")


async def load(models: Registry, name: str) -> None:
    """Load a model, or the versions of one in the repository as it is now.

    A model that is loaded and whose files have changed is loaded again while the old one serves. If a
    version cannot be loaded, no version is added or removed.

    Raises:
        UnknownModel: no such model is served, or in the repository.
        Conflict, EngineNotReady, EngineFailed, ModelError, SettingsError: see :meth:`ServedModel.reload`.
    """
    repository = models.settings.model_repository
    served = list(_versions(models, name))
    if not repository or any(not one.in_repository for one in served):
        models.named(name)
        for one in served:
            await _load(one, {})
        return
    try:
        wanted = read_model(repository, name)
    except ModelNotFound as error:
        raise UnknownModel(str(error)) from None
    known = {one.name: one for one in served}
    added: list[ServedModel] = []
    try:
        for full_name, own in wanted.items():
            if full_name not in known:
                known[full_name] = models.add(NamedModel(full_name, own))
                added.append(known[full_name])
            await _load(known[full_name], own)
    except GalleyError:
        for one in added:
            await one.withdraw()
            models.remove(one)
        raise
    for one in served:
        if one.name not in wanted:
            await one.withdraw()
            models.remove(one)


async def unload(models: Registry, name: str) -> None:
    """Refuse new requests to all versions of a model, and free their memory after the running ones.

    Raises:
        UnknownModel: there is no such model.
        Conflict: it is being loaded.
    """
    models.named(name)
    for served in list(_versions(models, name)):
        await served.withdraw()


async def _load(served: ServedModel, own: Mapping[str, Any]) -> None:
    changed = {key: value for key, value in own.items() if getattr(served.settings, key) != value}
    if served.withdrawn is None:
        await served.reload(only_if_changed=True, settings=changed)
        return
    try:
        await served.restore(changed)
    except GalleyError as error:
        served.withdrawn = str(error)
        raise


def _versions(models: Registry, name: str) -> Iterator[ServedModel]:
    return (served for served in models if served.base_name == name)
