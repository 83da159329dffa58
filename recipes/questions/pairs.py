"""Pairs of questions with and without the same answer, and pairs of answers that say the same or not.

    python -m recipes.questions.pairs [--pairs 4000] [--seed 1] > pairs.jsonl
    python -m recipes.questions.pairs --answers > answers.jsonl

See :mod:`galley.demo.question_pairs`.
"""

from __future__ import annotations

import argparse
import json

from galley.demo.question_pairs import pairs
from galley.demo.questions import QUESTIONS

from .answers import ANSWERS


def main() -> None:
    """Print the pairs as JSON lines for ``galley cache tune``."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--answers", action="store_true", help="pairs of answers")
    given = parser.parse_args()
    texts = ANSWERS if given.answers else QUESTIONS
    for pair in pairs(given.pairs, given.seed, texts=texts):
        print(json.dumps({"a": pair.a, "b": pair.b, "same": pair.same, "kind": pair.kind}))


if __name__ == "__main__":
    main()
