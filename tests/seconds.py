"""Prints the seconds of a run by folder, from a report that ``pytest --junitxml FILE`` wrote.

    python -m tests.seconds FILE

With three workers on two cores, a second of a test is up to two thirds of a second of a core.
"""

import sys
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree


def by_folder(report: Path) -> dict[str, list[float]]:
    """Return folder -> the seconds of each of its tests that ran, of a JUnit report."""
    found = defaultdict[str, list[float]](list)
    for case in ElementTree.parse(report).iter("testcase"):
        if case.find("skipped") is not None:
            continue
        folder = case.attrib["classname"].split(".")[1]
        folder = "single files" if folder.startswith("test_") else folder
        found[folder].append(float(case.attrib["time"]))
    return found


def main(report: Path) -> None:
    """Print the table."""
    found = by_folder(report)
    print("| folder | tests run | seconds |\n|---|---|---|")
    for folder, seconds in sorted(found.items(), key=lambda item: -sum(item[1])):
        print(f"| {folder} | {len(seconds):,} | {sum(seconds):.0f} |")
    every = [second for seconds in found.values() for second in seconds]
    print(f"| all | {len(every):,} | {sum(every):,.0f} |")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
