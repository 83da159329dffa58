"""Check the dependencies against known advisories, without a network.

    python scripts/audit.py
    python scripts/audit.py --online    # also runs pip-audit on the Python advisory database

Every package that an extra of Galley requires must be installed in the version that ``constraints.txt``
pins, and no pin may be listed as vulnerable in ``scripts/advisories.json``. Advisories are added there when
they are published; ``--online`` finds those that are missing. Prints a line for each finding and exits with
1 if there are any.
"""

import argparse
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Final

import msgspec
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT: Final = Path(__file__).parents[1]
ADVISORIES: Final = Path(__file__).with_name("advisories.json")
GALLEY: Final = "galley-inference"
EXTRAS: Final = frozenset({"speech", "torch", "train", "dev", "fuzz"})


class Advisory(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A known vulnerability.

    Attributes:
        package: its canonical name (PEP 503).
        affected: versions (PEP 440).
        fixed: the first version of that release line without it.
        id: CVE or GHSA.
        what: a short description.
        source: link to the full advisory.
    """

    package: str
    affected: str
    fixed: str
    id: str
    what: str
    source: str

    def __post_init__(self) -> None:
        """Raise ValueError for a range that includes its own fix, or a name that is not canonical."""
        if self.package != canonicalize_name(self.package):
            raise ValueError(f"{self.package} must be written {canonicalize_name(self.package)}")
        if Version(self.fixed) in _versions(self.affected):
            raise ValueError(
                f"{self.id}: {self.affected} includes {self.fixed}, the version that fixes it"
            )


def read_advisories(file: Path = ADVISORIES) -> list[Advisory]:
    """Return all known advisories. Raises msgspec.ValidationError for a malformed file."""
    return msgspec.json.decode(file.read_bytes(), type=list[Advisory])


def read_pins(text: str) -> dict[str, Version]:
    """Map the canonical name to the version of each ``name==version`` line.

    Raises:
        ValueError: a line has another form.
    """
    pins: dict[str, Version] = {}
    for line in text.splitlines():
        if not (line := line.partition("#")[0].strip()):
            continue
        name, equal, version = line.partition("==")
        if not equal:
            raise ValueError(f"constraints.txt: {line!r} pins no version")
        pins[canonicalize_name(name)] = Version(version)
    return pins


def vulnerable(pins: Mapping[str, Version], advisories: list[Advisory]) -> Iterator[str]:
    """Yield a line for each pin that an advisory affects."""
    for advisory in advisories:
        pin = pins.get(advisory.package)
        if pin is not None and pin in _versions(advisory.affected):
            yield (
                f"{advisory.package} {pin}: {advisory.id} ({advisory.what}); fixed in "
                f"{advisory.fixed}, see {advisory.source}"
            )


def unpinned(pins: Mapping[str, Version]) -> Iterator[str]:
    """Yield a line for each installed dependency without a pin, or with another version than its pin."""
    for name, version in sorted(_installed().items()):
        if name not in pins:
            yield f"{name} {version} is installed, but constraints.txt does not pin it"
        elif pins[name].public != version.public:
            yield f"{name} {version} is installed, but constraints.txt pins {pins[name]}"


def _versions(affected: str) -> SpecifierSet:
    return SpecifierSet(affected, prereleases=True)


def _installed() -> dict[str, Version]:
    """Return every installed package that Galley needs, directly or indirectly, with any of its extras."""
    found: dict[str, Version] = {}
    wanted = [(GALLEY, extra) for extra in ("", *EXTRAS)]
    seen = set(wanted)
    while wanted:
        name, extra = wanted.pop()
        package = _distribution(name)
        if package is None:
            continue
        if name != GALLEY:
            found[name] = Version(package.version)
        for requirement in map(Requirement, package.requires or ()):
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                needed = canonicalize_name(requirement.name)
                new = {(needed, more) for more in ("", *requirement.extras)} - seen
                seen |= new
                wanted += new
    return found


def _distribution(name: str) -> Distribution | None:
    try:
        return distribution(name)
    except PackageNotFoundError:  # belongs to an extra that is not installed
        return None


def main() -> None:
    """Check, print the findings, and exit with 1 if there are any."""
    parser = argparse.ArgumentParser(description="Check the dependencies against known advisories.")
    parser.add_argument("--online", action="store_true", help="also run pip-audit")
    arguments = parser.parse_args()
    pins = read_pins((ROOT / "constraints.txt").read_text(encoding="utf-8"))
    advisories = read_advisories()
    findings = [*vulnerable(pins, advisories), *unpinned(pins)]
    for finding in findings:
        print(finding)
    status = bool(findings)
    if not findings:
        print(f"{len(pins)} pins, {len(advisories)} advisories: nothing found")
    if arguments.online:
        command = [sys.executable, "-m", "pip_audit", "--requirement", "constraints.txt"]
        status |= bool(
            subprocess.run(
                [*command, "--no-deps", "--disable-pip"], cwd=ROOT, check=False
            ).returncode
        )
    sys.exit(status)


if __name__ == "__main__":
    main()
