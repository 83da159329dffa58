"""Measure recall and precision of the redaction rules on a generated corpus of calls.

    python -m benchmarks.redaction [--calls 2000]

A value counts as found if all of it is covered, and a span as right if it overlaps a value. The rules were
written with the first set of sentences and not adapted to the second.
"""

import argparse

from tests.redact.corpus import OTHER_SENTENCES, SENTENCES, corpus
from tests.redact.counts import covered_in_all

from galley.cli.terminal import table
from galley.redact.spans import KINDS


def main() -> None:
    """Count and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--calls", type=int, default=2000, help="number of calls for each set of sentences"
    )
    calls = parser.parse_args().calls
    rows: list[list[str]] = [[kind] for kind in KINDS]
    for seed, sentences in ((7, SENTENCES), (8, OTHER_SENTENCES)):
        values, whole, found, right = covered_in_all(corpus(seed, calls, sentences))
        for kind, row in zip(KINDS, rows, strict=True):
            row += [
                f"{values[kind]:,}",
                f"{whole[kind] / values[kind]:.1%}",
                f"{right[kind] / found[kind]:.1%}",
            ]
    print(table(("kind", *("values", "found", "right") * 2), rows))


if __name__ == "__main__":
    main()
