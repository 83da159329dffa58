"""One name for the distribution: in its metadata, in errors and in the documentation."""

import re
import tomllib
from pathlib import Path

from galley.errors import DISTRIBUTION, pip_install
from galley.ops.executor import EXECUTORS

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = "|".join(PROJECT["optional-dependencies"])


def test_the_distribution_has_a_name_of_its_own_and_the_command_stays() -> None:
    assert PROJECT["name"] == DISTRIBUTION
    assert PROJECT["scripts"] == {"galley": "galley.cli.main:main"}


def test_extras_that_stand_on_extras_name_this_distribution() -> None:
    named = [
        re.fullmatch(r"([\w-]+)\[(\w+)\]", requirement)
        for extra in PROJECT["optional-dependencies"].values()
        for requirement in extra
        if "[" in requirement
    ]
    assert named
    for match in named:
        assert match
        assert match[1] == DISTRIBUTION
        assert match[2] in PROJECT["optional-dependencies"]


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
