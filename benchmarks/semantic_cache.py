"""Measure the semantic cache's false hits and hit rate on labeled pairs of questions.

    python -m benchmarks.semantic_cache --model galley-demo-embed --model PATH [--pairs FILE]
        [--reranker PATH]

The threshold is tuned with one half of the pairs and measured with the other; no question is in both
halves. Without ``--pairs``, the pairs are those of :mod:`galley.demo.question_pairs`. Beside it: the
cosine alone, with the threshold at which its hit rate is the same. A reranker's threshold is tuned with the
cosine's; ``recipes.questions.cross_encoder`` trains one and writes pairs that it has not seen.
"""

import argparse
import contextlib
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from galley.cache.chances import interval
from galley.cache.tuning import Pair, Result, Scored, at_hit_rate, chosen, read_pairs, results
from galley.lab.experiments.semantic_cache import half, scored
from galley.llm.llm import LLM

BUDGET = 0.01
HIT_RATES = (0.05, 0.1, 0.2, 0.4)
"""Shown where no threshold keeps the budget."""


def halves_of_file(path: Path, most: int) -> tuple[list[Pair], list[Pair]]:
    """Return two halves of a file's pairs that have no text in common."""
    side: dict[str, int] = {}
    halves: tuple[list[Pair], list[Pair]] = ([], [])
    for number, pair in enumerate(read_pairs(path)):
        known = {side[text] for text in pair[:2] if text in side}
        if len(known) == 2:
            continue
        half = known.pop() if known else number % 2
        side[pair.first] = side[pair.second] = half
        if len(halves[half]) < most // 2:
            halves[half].append(pair)
    return halves


def score(llm: LLM, some: Sequence[Pair], ranker: LLM | None) -> list[Scored]:
    """Return what the cache knows of each pair."""
    rankings = None
    if ranker is not None:
        rankings = [ranker.rerank(one.first, [one.second], truncate=True)[0] for one in some]
    return scored(llm, some, rankings)


def line(name: str, one: Result) -> str:
    """Return the figures of one threshold."""
    low, high = interval(one.false, one.hits)
    return (
        f"{name:<34} threshold {one.threshold:.3f}  hit rate {100 * one.hit_rate:5.1f} %  "
        f"false {one.false:5d} of {one.hits:5d} hits: {100 * one.false_rate:5.2f} % "
        f"({100 * low:.2f} to {100 * high:.2f})"
    )


def measure(
    model: str, ranker: LLM | None, seen: Sequence[Pair], others: Sequence[Pair], budget: float
) -> None:
    """Print the figures of one model."""
    began = time.process_time()
    with LLM(model) as llm:
        tuned, held_out = results(score(llm, seen, ranker)), score(llm, others, ranker)
    print(f"{model}: {len(seen)} + {len(others)} pairs, {time.process_time() - began:.0f} CPU s")
    best = chosen(tuned, budget)
    if best is None:
        print(f"  no threshold keeps false hits below {100 * budget:.3g} %; by hit rate:")
        for rate in HIT_RATES:
            show_at(rate, tuned, held_out)
        return
    print(line("  tuned half", best))
    here = same_limits(best, held_out)
    print(line("  other half", here))
    bare = at_hit_rate(results(held_out, facts=False), here.hit_rate)
    if bare is not None:
        print(line("  other half, cosine alone", bare))


def same_limits(one: Result, held_out: Sequence[Scored]) -> Result:
    """Return what the thresholds of a result give on the other half."""
    ranking = -np.inf if one.ranking is None else one.ranking
    passing = [each for each in held_out if each.ranking is None or each.ranking >= ranking]
    found = results([each._replace(ranking=None) for each in passing])
    [here] = [other for other in found if other.threshold == one.threshold]
    return Result(one.threshold, one.ranking, here.hits, here.false, sum(x.same for x in held_out))


def show_at(rate: float, tuned: Sequence[Result], held_out: Sequence[Scored]) -> None:
    """Print what the best thresholds of a hit rate on the tuned half give on the other one."""
    reaching = [one for one in tuned if one.hit_rate >= rate]
    if reaching:
        best = min(reaching, key=lambda one: (one.false_rate, -one.hit_rate))
        print(line(f"  other half, {rate:.0%}", same_limits(best, held_out)))
    bare = at_hit_rate(results(held_out, facts=False), rate)
    if bare is not None:
        print(line(f"  other half, {rate:.0%}, cosine alone", bare))


def main() -> None:
    """Measure each model."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", action="append", required=True)
    parser.add_argument("--pairs", type=Path, help="labeled pairs, as for galley cache tune")
    parser.add_argument("--reranker", help="cross-encoder that compares as well")
    parser.add_argument("--most", type=int, default=4000, help="pairs in all")
    parser.add_argument("--budget", type=float, default=BUDGET)
    given = parser.parse_args()
    if given.pairs is None:
        seen, others = (half(number, given.most // 2) for number in (0, 1))
    else:
        seen, others = halves_of_file(given.pairs, given.most)
    with contextlib.ExitStack() as stack:
        ranker = stack.enter_context(LLM(given.reranker)) if given.reranker else None
        for model in given.model:
            measure(model, ranker, seen, others, given.budget)


if __name__ == "__main__":
    main()
