"""The folders of ``native/`` include each other in one direction, and only the bindings use nanobind."""

import re
from pathlib import Path
from typing import Final

NATIVE: Final = Path(__file__).parents[2] / "native"
FOLDERS: Final = ("kernels", "system", "packing", "runtime", "ops", "bindings")
"""Each may include those before it, and itself."""
FILES: Final = [file for file in NATIVE.rglob("*.?pp") if file.is_file()]


def test_every_file_is_in_a_folder() -> None:
    assert {file.relative_to(NATIVE).parts[0] for file in FILES} == set(FOLDERS)


def test_folders_include_only_what_is_before_them() -> None:
    wrong = []
    for file in FILES:
        folder = file.relative_to(NATIVE).parts[0]
        allowed = FOLDERS[: FOLDERS.index(folder) + 1]
        included = re.findall(r'^#include "(\w+)/', file.read_text(encoding="utf-8"), re.MULTILINE)
        wrong += [(file.name, name) for name in included if name not in allowed]
    assert wrong == []


def test_nanobind_is_used_in_the_bindings_alone() -> None:
    users = {file.parent.name for file in FILES if "nanobind" in file.read_text(encoding="utf-8")}
    assert users == {"bindings"}
