"""The distribution: its name, its contents, and installation without a compiler."""

import fnmatch
import re
import subprocess
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Final

import pytest
from packaging.specifiers import SpecifierSet
from scripts import wheel

from galley.errors import DISTRIBUTION, pip_install
from galley.ops.choice import EXECUTORS
from tests.thorough import THOROUGH

ROOT = Path(__file__).parents[1]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = SETTINGS["project"]
BUILD = SETTINGS["tool"]["scikit-build"]
EXTRAS = "|".join(PROJECT["optional-dependencies"])
BUILDS: Final = pytest.mark.skipif(
    not THOROUGH,
    reason="installs into environments of its own, and compiles: make thorough runs it",
)
SOURCES: Final = (
    "LICENSE",
    "README.md",
    "constraints.txt",
    "native/CMakeLists.txt",
    "native/kernels/simd/neon.hpp",
    "native/bindings/module.cpp",
    "pyproject.toml",
    "src/galley/__init__.py",
    "src/galley/_native.pyi",
    "src/galley/demo/draft/model.safetensors",
    "src/galley/demo/embed/model.safetensors",
    "src/galley/demo/model/model.safetensors",
    "src/galley/demo/speech/model/model.safetensors",
    "src/galley/py.typed",
    "tests/test_distribution.py",
)
"""Some files that the source distribution must contain."""


def test_the_distribution_and_the_command_have_different_names() -> None:
    assert PROJECT["name"] == DISTRIBUTION
    assert PROJECT["scripts"] == {"galley": "galley.cli.main:main"}


def test_extras_that_stand_on_extras_name_this_distribution() -> None:
    extras = PROJECT["optional-dependencies"]
    named = [
        match
        for extra in extras.values()
        for requirement in extra
        if (match := re.match(r"([\w-]+)\[(\w+)\](.*)", requirement))
        # Other distributions have extras of their own (tritonclient[http]).
        and (match[1].startswith("galley") or match[2] in extras)
    ]
    assert named
    for match in named:
        assert match[1] == DISTRIBUTION
        assert match[2] in extras
        assert not match[3]


def test_remedies_name_the_distribution() -> None:
    assert EXECUTORS["reference"].remedy == pip_install("torch")
    assert DISTRIBUTION in EXECUTORS["cpu"].remedy


def test_no_page_and_no_message_names_another_projects_package() -> None:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("src/galley/**/*.py")]
    assert len(pages) > 100
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert set(re.findall(rf"(galley[\w-]*)\[(?:{EXTRAS})\]", text)) <= {DISTRIBUTION}, page
        assert not re.search(r"pip install '?galley\b(?!-)", text), page


def overrides(**condition: object) -> dict[str, object]:
    """Return the build settings under this single condition."""
    (found,) = [o for o in BUILD["overrides"] if condition.items() <= o["if"].items()]
    return dict(found)


def test_a_failed_compilation_installs_python_alone_unless_the_native_module_is_required() -> None:
    failed = overrides(failed=True)
    assert failed["if"] == {"failed": True, "env": {"GALLEY_REQUIRE_NATIVE": False}}
    assert failed["wheel"] == {
        "cmake": False,
        "py-api": "py3",
        "exclude": ["galley/_native.*.so"],
    }
    message = str(failed["messages"])
    assert pip_install("torch") in message
    assert "C++17 compiler" in message
    # pip would install the wheel that it cached from the installation without.
    assert "--no-cache-dir" in message


def test_one_wheel_is_for_all_versions_from_3_12_on() -> None:
    stable = overrides(**{"python-version": ">=3.12"})
    assert stable["wheel"] == {"py-api": "cp312"}
    # Without Development.SABIModule CMake would build for one version under the tag of all.
    assert not SpecifierSet(stable["cmake"]["version"]).contains("3.25.9")  # type: ignore[index]
    assert "STABLE_ABI" in (ROOT / "native/CMakeLists.txt").read_text()


def test_every_python_that_the_metadata_names_gets_a_wheel_and_the_tests() -> None:
    classifiers = " ".join(PROJECT["classifiers"])
    versions = re.findall(r"Python :: (3\.\d+)", classifiers)
    assert versions[0] == PROJECT["requires-python"].removeprefix(">=")
    patterns = SETTINGS["tool"]["cibuildwheel"]["build"]
    for version in versions:
        for platform in ("manylinux_x86_64", "manylinux_aarch64", "macosx_arm64"):
            tag = f"cp{version.replace('.', '')}-{platform}"
            assert any(fnmatch.fnmatch(tag, pattern) for pattern in patterns), tag
    workflow = (ROOT / ".github/workflows/tests.yml").read_text()
    assert f"python: {versions}".replace("'", '"') in workflow


def tracked() -> set[str]:
    listed = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True)
    return set(listed.split("\0")) - {""}


def test_the_wheel_leaves_out_what_is_there_and_what_can_be_had_elsewhere() -> None:
    for pattern in BUILD["wheel"]["exclude"]:
        assert (ROOT / "src" / pattern).is_file(), pattern
    assert BUILD["wheel"]["exclude"] == [
        "galley/demo/draft/model.safetensors",
        "galley/demo/draft/tokenizer.json",
        "galley/demo/embed/model.safetensors",
        "galley/demo/embed/tokenizer.json",
        "galley/demo/speech/model/model.safetensors",
        "galley/demo/speech/model/tokenizer.json",
        "galley/speech/diarize/models/encoder.onnx",
        "galley/speech/diarize/models/segmentation.onnx",
    ]


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wheel.new_environment(tmp_path_factory.mktemp("tools") / "tools", *wheel.TOOLS)


@pytest.fixture(scope="module")
def sdist(tools: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wheel.build_sdist(tools, tmp_path_factory.mktemp("sdist"))


@BUILDS
@pytest.mark.timeout(3600)
def test_the_source_distribution_holds_all_that_the_repository_does(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert set(SOURCES) <= names
    assert tracked() <= names
    assert not [name for name in names if name.endswith((".so", ".pyc"))]


@BUILDS
@pytest.mark.timeout(3600)
def test_without_a_compiler_the_bundled_model_answers_on_the_reference_executor(
    sdist: Path, tmp_path: Path
) -> None:
    programs = wheel.new_environment(
        tmp_path / "fresh", f"{DISTRIBUTION}[torch] @ {sdist.as_uri()}", **wheel.NO_COMPILER
    )
    assert "keys and values" in wheel.answer(programs, tmp_path)
    assert not list((tmp_path / "fresh").rglob("_native.*.so"))


@BUILDS
@pytest.mark.timeout(3600)
def test_this_machines_wheel_answers_where_there_is_nothing_else(
    tools: Path, sdist: Path, tmp_path: Path
) -> None:
    made = wheel.build_wheel(tools, sdist, tmp_path)
    assert "manylinux" in made.name
    with zipfile.ZipFile(made) as archive:
        names = archive.namelist()
    assert len(fnmatch.filter(names, "galley/_native.*.so")) == 1
    assert "galley/demo/model/model.safetensors" in names
    assert not set(BUILD["wheel"]["exclude"]) & set(names)
    # Without torch only the native executor can answer.
    programs = wheel.new_environment(tmp_path / "fresh", str(made))
    assert "keys and values" in wheel.answer(programs, tmp_path)
