"""Measure the CPU time of a mask on the values of a schema suite, in Galley and in llguidance alone.

    python -m scripts.mask_times jsonschemabench/maskbench/data [--sample 50] [--seed 0]

For each schema that compiles, the first of its tests with a valid value is followed token by token, and a
mask of the whole vocabulary is computed before each token. The vocabulary is generated
(``benchmarks/grammar.py``). llguidance gets the schema as it is and fills a bit mask; Galley gets its own
form of the schema and fills the numbers that are added to logits. Times are CPU time of the thread.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from benchmarks.grammar import EOS, make_vocabulary
from llguidance import LLMatcher, LLTokenizer

from galley.errors import RequestError
from galley.grammar.check import LIMITS, check
from galley.grammar.matcher import Grammars
from galley.grammar.vocabulary import load_vocabulary
from galley.types import Grammar
from scripts.schema_suites import Group, groups_of

VOCABULARY = 128_000
MOST_TOKENS = 512
_WORD_BITS = 32


class MaskTimes(NamedTuple):
    """Microseconds of CPU for each mask of each value that was followed to its end."""

    values: list[list[float]]

    def text(self) -> str:
        """Return the figures as a line of text."""
        micros = [each for value in self.values for each in value]
        if not micros:
            return "no masks"
        shown = ", ".join(
            f"{name} {value:.0f} us"
            for name, value in (
                ("P50", np.percentile(micros, 50)),
                ("P99", np.percentile(micros, 99)),
                ("longest", max(micros)),
            )
        )
        return f"{len(self.values)} values, {len(micros)} masks: {shown}"


def mask_times(groups: Iterable[Group]) -> dict[str, MaskTimes]:
    """Return the times of masks by name: galley, llguidance."""
    found = {name: MaskTimes([]) for name in ("galley", "llguidance")}
    with tempfile.TemporaryDirectory() as made:
        make_vocabulary(Path(made), VOCABULARY)
        grammars = Grammars(Path(made), VOCABULARY, [EOS])
        vocabulary = load_vocabulary(Path(made), vocab_size=VOCABULARY, eos_token_ids=[EOS])
        for group in groups:
            for name, micros in _of(group, grammars, vocabulary):
                found[name].values.append(micros)
        grammars.close()
    return found


def _of(
    group: Group, grammars: Grammars, vocabulary: LLTokenizer
) -> Iterator[tuple[str, list[float]]]:
    """Yield the times on a group's first valid value; of a name that cannot follow it, nothing."""
    valid = next((test["data"] for test in group.tests if test["valid"]), None)
    if valid is None:
        return
    tokens = vocabulary.tokenize_str(json.dumps(valid, ensure_ascii=False))[:MOST_TOKENS]
    try:
        checked = check(Grammar("json_schema", json.dumps(group.schema)), vocabulary, "schema")
    except RequestError:
        return
    if (micros := _galley(checked, grammars, tokens)) is not None:
        yield "galley", micros
    if (micros := _llguidance(group.schema, vocabulary, tokens)) is not None:
        yield "llguidance", micros


def _galley(checked: Grammar, grammars: Grammars, tokens: list[int]) -> list[float] | None:
    followed = grammars.compile(checked, []).result()
    mask = followed.empty_masks(1)[0]
    micros = []
    for token in tokens:
        began = time.thread_time_ns()
        followed.fill((), [mask])
        micros.append((time.thread_time_ns() - began) / 1e3)
        if mask[token] != 0 or not followed.accept(token):
            return None
    return micros


def _llguidance(schema: object, vocabulary: LLTokenizer, tokens: list[int]) -> list[float] | None:
    try:
        source = LLMatcher.grammar_from_json_schema(json.dumps(schema))
    except ValueError:
        return None
    matcher = LLMatcher(vocabulary, source, log_level=0, limits=LIMITS)
    bits = np.zeros(-(-vocabulary.vocab_size // _WORD_BITS), np.int32)
    micros = []
    for token in tokens:
        began = time.thread_time_ns()
        matcher.unsafe_compute_mask_ptr(bits.ctypes.data, bits.nbytes)
        micros.append((time.thread_time_ns() - began) / 1e3)
        if matcher.is_error() or not matcher.consume_token(token):
            return None
    return micros


def main() -> None:
    """Print the times."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sample", type=int, default=50, help="schemas of each split; 0: all")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    groups = groups_of(given.folder, sample=given.sample, seed=given.seed)
    for name, times in mask_times(groups).items():
        print(f"{name}: {times.text()}")


if __name__ == "__main__":
    main()
