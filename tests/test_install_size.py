"""The core with all its dependencies is a small install."""

import tomllib
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import galley
from galley import _native

LIMIT: Final = 150_000_000
"""Bytes."""
ROOT: Final = Path(__file__).parents[1]


def closure(requirements: list[str]) -> dict[str, Distribution]:
    """Return what pip would install: name -> distribution, extras left out."""
    found: dict[str, Distribution] = {}
    todo = list(requirements)
    while todo:
        requirement = Requirement(todo.pop())
        name = canonicalize_name(requirement.name)
        marker = requirement.marker
        if name in found or (marker and not marker.evaluate({"extra": ""})):
            continue
        found[name] = distribution(name)
        todo += found[name].requires or []
    return found


def sizes(distribution: Distribution) -> Iterator[tuple[str, int]]:
    for file in distribution.files or []:
        yield file.name, file.size or 0


def on_disk(files: Iterator[tuple[str, int]]) -> float:
    """Return the size in bytes, including the modules as compiled by pip."""
    return sum(
        2.2 * size if name.endswith(".py") else size
        for name, size in files
        if not name.endswith(".pyc")
    )


def test_the_core_is_a_small_install() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    needed = closure(settings["project"]["dependencies"])
    assert "torch" not in needed
    bytes_of = {name: on_disk(sizes(found)) for name, found in needed.items()}
    package = Path(galley.__file__).parent
    excluded = {
        ROOT / "src" / name for name in settings["tool"]["scikit-build"]["wheel"]["exclude"]
    }
    assert all(path.exists() for path in excluded)
    bytes_of["galley"] = on_disk(
        (path.name, path.stat().st_size)
        for path in package.rglob("*")
        if path.is_file() and path not in excluded
    )
    # An editable installation has it elsewhere.
    native = Path(_native.__file__)
    if not native.is_relative_to(package):
        bytes_of["galley"] += native.stat().st_size
    largest = sorted(bytes_of.items(), key=lambda item: -item[1])
    assert sum(bytes_of.values()) <= LIMIT, largest
