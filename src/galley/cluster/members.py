"""The replicas of models that come and go, as a file lists them (setting ``replica_file``).

    chat:                                   # a model's name
      stable: {share: 90, replicas: [10.0.0.7:8500, 10.0.0.8:8500]}
      canary: {share: 10, replicas: [10.0.0.9:8500]}

Whatever discovers replicas replaces the file as a whole (a rename). Servers read it again when it changes.
If it cannot be used, the replicas stay as they are.
"""

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec

from galley.cluster.remote import remote_source
from galley.errors import SettingsError
from galley.links.access import Access
from galley.settings.file import read_settings_file
from galley.settings.values import parsed_address

if TYPE_CHECKING:
    from galley.service.fleet import Fleet

log = logging.getLogger("galley.cluster")

POLL_SECONDS: Final = 0.2
"""Seconds between two looks at the file."""

_RELEASE: Final = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}\Z"


class Release(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The replicas of one release of a model.

    Attributes:
        share: its share of the model's requests, in percent.
        replicas: HOST:PORT of each.
        sleeps: whether it may have none while there are no requests.
        alias: a further name by which requests may choose it.
    """

    share: Annotated[float, msgspec.Meta(ge=0, le=100)] = 100.0
    replicas: list[str] = []
    sleeps: bool = False
    alias: str = ""


Members = dict[str, dict[Annotated[str, msgspec.Meta(pattern=_RELEASE)], Release]]
"""Model -> name of a release -> its replicas."""


def read_members(path: Path) -> Members:
    """Return the contents of a replica file.

    Raises:
        SettingsError: it cannot be read, or has another form.
    """
    try:
        members = msgspec.convert(read_settings_file(path), Members)
    except msgspec.ValidationError as error:
        raise SettingsError(
            f"replica_file {path}: {error}; expected models with releases, such as "
            "{chat: {stable: {share: 100, replicas: [10.0.0.7:8500]}}}"
        ) from None
    for model, releases in members.items():
        listed = [address for one in releases.values() for address in one.replicas]
        for address in listed:
            parsed_address(address)
        if twice := next((one for one in listed if listed.count(one) > 1), None):
            raise SettingsError(f"replica_file {path}: {model} has {twice} twice; leave out one")
    return members


def write_members(path: Path, members: Members) -> None:
    """Replace a replica file as a whole."""
    new = path.with_name(f"{path.name}.new")
    new.write_bytes(msgspec.json.encode(members))
    new.replace(path)


def following(
    path: Path, model: str, access: Access, seats: int
) -> "Callable[[Fleet], Coroutine[Any, Any, None]]":
    """Return a task that has a fleet follow the replicas of a model in a file.

    Args:
        path: the file.
        model: the model's name in it.
        access: the token and the certificates.
        seats: sequences that a replica runs at the same time, before it has reported more.
    """

    def apply(fleet: "Fleet", releases: Mapping[str, Release]) -> None:
        sources = [
            dataclasses.replace(remote_source(address, access, seats), release=name)
            for name, release in releases.items()
            for address in release.replicas
        ]
        fleet.releases.shares = {name: one.share for name, one in releases.items()}
        fleet.releases.sleeping = {name for name, one in releases.items() if one.sleeps}
        fleet.releases.aliases = {one.alias: name for name, one in releases.items() if one.alias}
        fleet.follow(sources)

    async def follow(fleet: "Fleet") -> None:
        seen: object = ""
        releases: Mapping[str, Release] = {}
        while True:
            state = _state(path)
            # A replica's address may be that of one that is still leaving.
            if state != seen or fleet.has_leaving:
                try:
                    if state != seen:
                        seen = state
                        releases = read_members(path).get(model, {})
                    apply(fleet, releases)
                except SettingsError as error:
                    log.error("the replicas of %s stay as they are: %s", model, error)
                except Exception:
                    # The next contents may be usable, and nobody else would list replicas.
                    log.exception("the replicas of %s could not be changed", model)
            await asyncio.sleep(POLL_SECONDS)

    return follow


def _state(path: Path) -> object:
    """Return what changes whenever the file is replaced; None without a file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
