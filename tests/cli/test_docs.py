"""The documentation of the settings matches the code."""

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from scripts import benchmarks_page

from galley.observe.metrics import Metrics
from galley.observe.resources import GPU_METRICS
from galley.settings.config import Settings
from tests.cli.command import parsed_command

ROOT = Path(__file__).parents[2]
SETTINGS = ROOT / "docs/operations/settings.md"
METRICS = ROOT / "docs/operations/metrics.md"
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]


def settings_table() -> list[str]:
    """Return the table in docs/operations/settings.md; print it to update the page."""
    rows = ["| setting | default | group | meaning |", "|---|---|---|---|"]
    for field in dataclasses.fields(Settings):
        default = "" if field.default in (None, "", ()) else f"`{field.default}`".lower()
        help_text = field.metadata["help"]
        rows.append(f"| `{field.name}` | {default} | {field.metadata['group']} | {help_text} |")
    return rows


def test_the_settings_table_is_current() -> None:
    lines = SETTINGS.read_text(encoding="utf-8").splitlines()
    start = lines.index(settings_table()[0])
    assert lines[start : start + len(settings_table())] == settings_table()


def test_links_between_pages_lead_somewhere() -> None:
    assert len(PAGES) > 10
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
            assert "://" in target or (page.parent / target).exists(), (page.name, target)


def test_the_pages_of_results_are_made_of_the_results() -> None:
    machines = benchmarks_page.read_results()
    for path, text in benchmarks_page.pages(machines).items():
        assert path.read_text(encoding="utf-8") == text, path
    notes = {f.note for machine in machines.values() for f in machine.figures if f.note}
    assert all((ROOT / "benchmarks/notes" / note).is_file() for note in notes)
    assert benchmarks_page.SUMMARY.read_text(encoding="utf-8").count("\n") <= 120


def test_the_notes_are_listed_newest_first() -> None:
    notes = ROOT / "benchmarks/notes"
    listed = re.findall(r"\((2[\w.-]+\.md)\)", (notes / "README.md").read_text(encoding="utf-8"))
    assert sorted(listed) == sorted(note.name for note in notes.glob("2*.md"))
    dates = [name[: len("2026-01-01")] for name in listed]
    assert dates == sorted(dates, reverse=True)


def test_every_metric_is_described() -> None:
    page = Metrics().render().decode()
    names = set(re.findall(r"^# TYPE (galley_\S+)", page, flags=re.MULTILINE))
    names = {name for name in names if not name.endswith("_created")}
    described = set(re.findall(r"`(galley_\w+)`", METRICS.read_text(encoding="utf-8")))
    assert described == names | GPU_METRICS.keys()


def test_the_site_has_every_page() -> None:
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    listed = list(leaves(site["nav"]))
    assert sorted(listed) == sorted(
        page.relative_to(ROOT / "docs").as_posix() for page in ROOT.glob("docs/**/*.md")
    )


def leaves(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    else:
        for child in nav if isinstance(nav, list) else nav.values():
            yield from leaves(child)


def commands(page: Path) -> Iterator[str]:
    """Yield each galley command in a page's code blocks, on one line."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    for line in text.splitlines():
        if re.match(r"(    )?galley [a-z]", line) and " [--" not in line:
            yield re.sub(r" (>>?|\|\|) .*", "", line.strip())


SHOWN = [
    (page, command)
    for page in (*ROOT.glob("docs/**/*.md"), ROOT / "README.md")
    for command in commands(page)
]


def test_pages_show_commands() -> None:
    assert len(SHOWN) > 40


@pytest.mark.parametrize(("page", "command"), SHOWN, ids=[command for _, command in SHOWN])
def test_a_command_that_a_page_shows_is_understood(page: Path, command: str) -> None:
    try:
        parsed_command(command)
    except click.BadParameter as error:  # a file that the reader supplies
        if not re.fullmatch(r"(File|Path) '[\w.]+' does not exist\.", error.message):
            raise
