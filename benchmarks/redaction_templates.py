"""Measure the redaction of names and addresses on sentences that others wrote.

    pip download --no-deps presidio-evaluator==0.3.2; unzip -o presidio_evaluator-*.whl
    python -m benchmarks.redaction_templates presidio_evaluator/data_generator/raw_data --half held-out

The sentences are the templates of Presidio's evaluator (MIT). Names are those of its table of 3,000 people
of many countries, or with --english those of Faker; firms those of its table of firms; addresses of Faker,
on one line, as in a transcript. A name or an address counts as found if all of it is covered. A span counts
as wrong if it touches neither; spans that touch a part of an address that stands alone, such as a street,
count as neither. The rules were tuned on the lines with even numbers; those with odd ones are held out.
"""

import argparse
import csv
import random
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from faker import Faker

from galley.cli.terminal import table
from galley.redact.find import find_spans
from galley.redact.spans import Kind, Span

_SLOT: Final = re.compile(r"\{\{?([a-z_0-9]+)\}?\}")
_ADDRESS_PARTS: Final = frozenset(
    ["street_name", "building_number", "secondary_address", "postcode", "zipcode", "state_abbr"]
)
_KINDS: Final[tuple[Kind, ...]] = ("name", "address")


class Filled(NamedTuple):
    """A text, the names and addresses in it, and the places that count as neither right nor wrong."""

    text: str
    spans: tuple[Span, ...]
    neutral: tuple[tuple[int, int], ...]


class Filler:
    """Fills in templates from tables of people and firms."""

    def __init__(self, folder: Path, seed: int, english: bool) -> None:
        """Read the tables of Presidio's evaluator; with ``english``, names are those of Faker."""
        self._english = english
        with (folder / "FakeNameGenerator.com_3000.csv").open(encoding="utf-8-sig") as file:
            self._people = list(csv.DictReader(file))
        with (folder / "companies_and_organizations.csv").open(encoding="utf-8-sig") as file:
            self._firms = [row[0] for row in list(csv.reader(file))[1:] if row and row[0]]
        self._chance = random.Random(seed)
        self._fake = Faker(["en_US", "en_GB", "en_CA"])
        self._fake.seed_instance(seed)

    def value(self, slot: str) -> tuple[str, Kind | None]:
        """Return the text of a slot, and its kind if it is to be found."""
        person = self._chance.choice(self._people)
        first, last = person["GivenName"], person["Surname"]
        if self._english:
            first, last = self._fake.first_name(), self._fake.last_name()
        if slot in ("name", "person", "name_male", "name_female"):
            return f"{first} {last}", "name"
        if slot.startswith("first_name"):
            return first, "name"
        if slot.startswith("last_name"):
            return last, "name"
        if slot == "address":
            return self._fake.address().replace("\n", ", "), "address"
        if slot == "organization":
            return self._chance.choice(self._firms), None
        if slot == "nationality":
            return person["CountryFull"], None
        if slot.startswith(("prefix", "age", "nation", "phone", "iban", "url", "job", "year")):
            return self._plain(slot), None
        provider = getattr(self._fake, slot, None)
        return (str(provider()) if provider else slot.replace("_", " ")), None

    def _plain(self, slot: str) -> str:
        kind = slot.split("_")[0]
        return {
            "prefix": lambda: "Mrs." if "female" in slot else "Mr.",
            "age": lambda: str(self._chance.randint(18, 90)),
            "phone": self._fake.phone_number,
            "iban": lambda: self._fake["en_GB"].iban(),
            "url": self._fake.url,
            "job": self._fake.job,
            "year": self._fake.year,
        }.get(kind, lambda: "Americans")()

    def fill(self, template: str) -> Filled:
        """Return a template with values."""
        text, spans, neutral, at = "", [], [], 0
        template = template.replace("\\n", "\n")
        for match in _SLOT.finditer(template):
            text += template[at : match.start()]
            value, kind = self.value(match[1])
            end = len(text) + len(value)
            if kind is not None:
                spans.append(Span(kind, len(text), end))
            elif match[1] in _ADDRESS_PARTS:
                neutral.append((len(text), end))
            text, at = text + value, match.end()
        return Filled(text + template[at:], tuple(spans), tuple(neutral))


def counts(texts: Iterator[Filled], show: int) -> tuple[Counter[str], ...]:
    """Count values, those covered, spans found and those that are right, by kind; show some errors."""
    values, covered, found, right = (Counter[str]() for _ in range(4))
    for filled in texts:
        spans = find_spans(filled.text)
        hidden = {at for span in spans for at in range(span.start, span.end)}
        for span in filled.spans:
            values[span.kind] += 1
            part = filled.text[span.start : span.end]
            whole = all(
                span.start + at in hidden or not char.isalnum() for at, char in enumerate(part)
            )
            covered[span.kind] += whole
            if not whole and show:
                show -= 1
                print(
                    f"missed {part!r} in {filled.text[max(0, span.start - 40) : span.end + 40]!r}"
                )
        for span in spans:
            if span.kind not in _KINDS or any(_touch(span, *place) for place in filled.neutral):
                continue
            found[span.kind] += 1
            is_right = any(_touch(span, one.start, one.end) for one in filled.spans)
            right[span.kind] += is_right
            if not is_right and show:
                show -= 1
                part = filled.text[span.start : span.end]
                print(f"wrong {part!r} in {filled.text[max(0, span.start - 40) : span.end + 40]!r}")
    return values, covered, found, right


def _touch(span: Span, start: int, end: int) -> bool:
    return span.start < end and start < span.end


def main() -> None:
    """Count and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--half", choices=("tuned", "held-out"), default="held-out")
    parser.add_argument(
        "--english", action="store_true", help="names of the US, Britain and Canada"
    )
    parser.add_argument(
        "--times", type=int, default=20, help="how often each template is filled in"
    )
    parser.add_argument("--show", type=int, default=0, help="print this many errors")
    arguments = parser.parse_args()
    lines = (arguments.folder / "templates.txt").read_text(encoding="utf-8").splitlines()
    mine = lines[arguments.half == "tuned" :: 2]
    filler = Filler(arguments.folder, seed=1, english=arguments.english)
    texts = (filler.fill(line) for _ in range(arguments.times) for line in mine)
    values, covered, found, right = counts(texts, arguments.show)
    rows = [
        (
            kind,
            f"{values[kind]:,}",
            f"{covered[kind] / values[kind]:.1%}",
            f"{right[kind] / found[kind]:.1%}",
        )
        for kind in _KINDS
    ]
    print(table(("kind", "values", "found", "right"), rows))


if __name__ == "__main__":
    main()
