"""The audit of the dependencies finds vulnerable and unpinned packages."""

from collections.abc import Callable
from pathlib import Path

import pytest
from packaging.version import Version
from scripts import audit

ROOT = Path(__file__).parents[1]


@pytest.fixture
def pins() -> dict[str, Version]:
    return audit.read_pins((ROOT / "constraints.txt").read_text(encoding="utf-8"))


def test_nothing_that_is_pinned_is_known_to_be_vulnerable(pins: dict[str, Version]) -> None:
    assert len(pins) > 50
    assert list(audit.vulnerable(pins, audit.read_advisories())) == []


@pytest.mark.parametrize(
    ("name", "version", "id"),
    [
        ("jinja2", "3.1.5", "CVE-2025-27516"),
        ("starlette", "0.47.1", "CVE-2025-54121"),
        ("starlette", "0.49.0", "CVE-2025-62727"),
        ("starlette", "1.0.0", "CVE-2026-48710"),
        ("python-multipart", "0.0.17", "CVE-2024-53981"),
        ("h11", "0.14.0", "CVE-2025-43859"),
        ("torch", "2.5.1+cpu", "CVE-2025-32434"),
        ("protobuf", "6.31.0", "CVE-2025-4565"),
    ],
)
def test_a_vulnerable_pin_is_found(
    pins: dict[str, Version], name: str, version: str, id: str
) -> None:
    assert name in pins
    found = list(audit.vulnerable(pins | {name: Version(version)}, audit.read_advisories()))
    assert any(f"{name} {version}: {id}" in line for line in found)
    assert all(line.startswith(f"{name} {version}: ") for line in found)


def test_dependencies_are_installed_as_pinned(pins: dict[str, Version]) -> None:
    assert list(audit.unpinned(pins)) == []
    [missing] = audit.unpinned({name: pin for name, pin in pins.items() if name != "msgspec"})
    assert missing == f"msgspec {pins['msgspec']} is installed, but constraints.txt does not pin it"
    [other] = audit.unpinned(pins | {"h11": Version("0.14.0")})
    assert other == f"h11 {pins['h11']} is installed, but constraints.txt pins 0.14.0"


@pytest.mark.parametrize("line", ["jinja2", "jinja2>=3", "jinja2 @ file:///x"])
def test_a_line_that_pins_nothing_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="pins no version"):
        audit.read_pins(f"anyio==4.16.0\n{line}\n")


@pytest.mark.parametrize(
    "wrong",
    [
        lambda a: {"package": "Jinja2"},
        lambda a: {"affected": "<4"},
        lambda a: {"note": ""},
    ],
    ids=["name", "range", "field"],
)
def test_an_advisory_must_make_sense(
    tmp_path: Path, wrong: Callable[[dict[str, str]], dict[str, str]]
) -> None:
    import msgspec

    good = {"package": "jinja2", "affected": "<3.1.6", "fixed": "3.1.6", "id": "X"}
    good |= {"what": "", "source": ""}
    file = tmp_path / "advisories.json"
    file.write_bytes(msgspec.json.encode([good]))
    assert len(audit.read_advisories(file)) == 1
    file.write_bytes(msgspec.json.encode([good | wrong(good)]))
    with pytest.raises(msgspec.ValidationError):
        audit.read_advisories(file)
