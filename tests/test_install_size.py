"""The core with all its dependencies is a small install."""

import marshal
import tomllib
from collections.abc import Iterable
from importlib.metadata import Distribution, distribution
from importlib.util import cache_from_source
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import galley
from galley import _native

LIMIT: Final = 158_000_000
"""Most bytes, compiled modules included; docs/operations/installing.md lists the parts."""
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


def on_disk(files: Iterable[Path]) -> int:
    """Return the bytes of files, and of their modules as pip compiles them."""
    whole = [path for path in files if path.suffix != ".pyc" and path.is_file()]
    return sum(
        path.stat().st_size + (compiled(path) if path.suffix == ".py" else 0) for path in whole
    )


def compiled(source: Path) -> int:
    """Return the bytes of a compiled module, which pip leaves next to its source."""
    cached = Path(cache_from_source(str(source)))
    if cached.exists():
        return cached.stat().st_size
    try:
        return 16 + len(marshal.dumps(compile(source.read_bytes(), str(source), "exec")))
    except SyntaxError:  # templates; pip compiles none either
        return 0


def test_the_core_is_a_small_install() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    needed = closure(settings["project"]["dependencies"])
    assert "torch" not in needed
    bytes_of = {
        name: on_disk(Path(str(file.locate())) for file in found.files or ())
        for name, found in needed.items()
    }
    package = Path(galley.__file__).parent
    excluded = {
        ROOT / "src" / name for name in settings["tool"]["scikit-build"]["wheel"]["exclude"]
    }
    assert all(path.exists() for path in excluded)
    bytes_of["galley"] = on_disk(path for path in package.rglob("*") if path not in excluded)
    # An editable installation has it elsewhere.
    native = Path(_native.__file__)
    if not native.is_relative_to(package):
        bytes_of["galley"] += native.stat().st_size
    largest = sorted(bytes_of.items(), key=lambda item: -item[1])
    assert sum(bytes_of.values()) <= LIMIT, largest
