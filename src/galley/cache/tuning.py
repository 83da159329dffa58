"""The threshold of the semantic cache, from pairs of questions that people have labeled.

What is chosen keeps the share of false hits below a budget with 95 % certainty: with few pairs, a threshold
is not believed even if none of its hits is false.
"""

import csv
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from galley.cache.chances import at_least
from galley.cache.facts import Facts, difference
from galley.errors import SettingsError, shown

MOST_PAIRS: Final = 1_000_000
_LONGEST: Final = 10_000
_DOUBT: Final = 0.05
"""Probability of a wrong statement that the share of false hits is below the budget."""
_STEPS: Final = 1000
"""Thresholds tried between 0 and 1."""
_RANKINGS: Final = 40
"""Thresholds of the cross-encoder that are tried."""
_NAMES: Final = (
    ("a", "b", "same"),
    ("question1", "question2", "is_duplicate"),
    ("text_a", "text_b", "label"),
)
"""Names of the fields of a pair; the second and third are those of Quora's question pairs."""


class Pair(NamedTuple):
    """Two questions; ``same``: whether the answer to one is the answer to the other."""

    first: str
    second: str
    same: bool


class Scored(NamedTuple):
    """The scores of a pair; ``ranking``: the cross-encoder's, if there is one."""

    same: bool
    similarity: float
    facts_agree: bool
    ranking: float | None = None


@dataclass(frozen=True)
class Result:
    """The hits of a threshold.

    Attributes:
        threshold: least cosine.
        ranking: least score of the cross-encoder; None: it is not used.
        hits: pairs that are hits.
        false: those of them that do not mean the same.
        same: pairs that mean the same, hits or not.
    """

    threshold: float
    ranking: float | None
    hits: int
    false: int
    same: int

    @property
    def hit_rate(self) -> float:
        """The share of pairs that mean the same that are hits."""
        return (self.hits - self.false) / max(1, self.same)

    @property
    def false_rate(self) -> float:
        """The share of hits that are false."""
        return self.false / max(1, self.hits)

    def keeps(self, budget: float) -> bool:
        """Return whether the share of false hits is below the budget, with 95 % certainty."""
        return is_below(self.false, self.hits, budget)


def is_below(count: int, of: int, budget: float) -> bool:
    """Return whether a share is below the budget with 95 % certainty, of which a sample is known."""
    if count >= budget * of:
        return False
    # So few are improbable if their share were the budget.
    return 1.0 - at_least(count + 1, of, budget) <= _DOUBT


def score(
    pairs: Sequence[Pair],
    similarity: Callable[[str, str], float],
    rankings: Sequence[float | None] | None = None,
) -> list[Scored]:
    """Return what the cache would know of each pair.

    Args:
        pairs: the pairs.
        similarity: returns the cosine of two texts.
        rankings: the cross-encoder's score of each pair; None: there is no cross-encoder.
    """
    facts = {text: Facts(text) for pair in pairs for text in (pair.first, pair.second)}
    return [
        Scored(
            pair.same,
            similarity(pair.first, pair.second),
            difference(facts[pair.first], facts[pair.second]) is None,
            ranking,
        )
        for pair, ranking in zip(pairs, rankings or [None] * len(pairs), strict=True)
    ]


def results(scored: Sequence[Scored], *, facts: bool = True) -> list[Result]:
    """Return the hits of each threshold of the cosine, from 0 to 1.

    Args:
        scored: the pairs.
        facts: whether a hit needs equal facts, and the cross-encoder's agreement; else the cosine decides.
    """
    same = sum(one.same for one in scored)
    if not facts:
        return _of_threshold(scored, None, same)
    agreeing = [one for one in scored if one.facts_agree]
    found = []
    for ranking in _rankings(agreeing):
        passing = [one for one in agreeing if ranking is None or (one.ranking or 0.0) >= ranking]
        found += _of_threshold(passing, ranking, same)
    return found


def _rankings(scored: Sequence[Scored]) -> list[float | None]:
    known = sorted(one.ranking for one in scored if one.ranking is not None)
    if not known:
        return [None]
    return [known[len(known) * n // _RANKINGS] for n in range(_RANKINGS)]


def _of_threshold(scored: Sequence[Scored], ranking: float | None, same: int) -> list[Result]:
    # Counts by step, added up from the highest.
    hits, false = [0] * (_STEPS + 1), [0] * (_STEPS + 1)
    for one in scored:
        step = min(_STEPS, math.floor(one.similarity * _STEPS + 1e-9))
        if step >= 0:
            hits[step] += 1
            false[step] += not one.same
    found = []
    all_hits = all_false = 0
    for step in range(_STEPS, 0, -1):
        all_hits, all_false = all_hits + hits[step], all_false + false[step]
        found.append(Result(step / _STEPS, ranking, all_hits, all_false, same))
    return found[::-1]


def chosen(found: Sequence[Result], budget: float) -> Result | None:
    """Return the result with the most hits that keeps the budget; None if none does."""
    # The test of a budget takes long with many pairs: no result needs it after the first that passes.
    best_first = sorted(found, key=lambda one: (one.hit_rate, one.threshold), reverse=True)
    return next((one for one in best_first if one.keeps(budget)), None)


def at_hit_rate(found: Sequence[Result], hit_rate: float) -> Result | None:
    """Return the highest threshold whose hit rate is at least ``hit_rate``."""
    reaching = [one for one in found if one.hit_rate >= hit_rate]
    return max(reaching, key=lambda one: one.threshold, default=None)


def fewest_hits(budget: float) -> int:
    """Return how many hits without a false one show that a budget is kept."""
    return math.ceil(math.log(_DOUBT) / math.log1p(-budget))


def read_pairs(path: Path) -> list[Pair]:
    """Read labeled pairs of questions or answers: JSON lines, or a table (.csv, .tsv) with a header.

    The fields are a, b and same, or those of Quora's question pairs.

    Raises:
        SettingsError: the file cannot be read, or a line is not a pair; the error names the line.
    """
    pairs: list[Pair] = []
    try:
        for number, fields in _lines(path):
            if len(pairs) == MOST_PAIRS:
                raise SettingsError(f"{path} has more than {MOST_PAIRS} pairs; give fewer")
            pairs.append(_pair(fields, f"{path}, line {number}"))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise SettingsError(f"cannot read {path}: {error}") from error
    if not any(pair.same for pair in pairs) or all(pair.same for pair in pairs):
        raise SettingsError(
            f"{path} needs pairs that mean the same and pairs that do not; the {len(pairs)} given are "
            "all alike"
        )
    return pairs


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        if path.suffix in (".csv", ".tsv"):
            table = csv.DictReader(file, delimiter="\t" if path.suffix == ".tsv" else ",")
            for fields in table:
                yield table.line_num, fields
            return
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                yield number, msgspec.json.decode(line, type=dict[str, Any])
            except msgspec.MsgspecError as error:
                raise SettingsError(
                    f"{path}, line {number} is not a JSON object: {error}"
                ) from None


def _pair(fields: dict[str, Any], where: str) -> Pair:
    for names in _NAMES:
        first, second, same = (fields.get(name) for name in names)
        if isinstance(first, str) and isinstance(second, str) and same is not None:
            if max(len(first), len(second)) > _LONGEST or not (first.strip() and second.strip()):
                raise SettingsError(
                    f"{where}: a text is empty, or longer than {_LONGEST} characters"
                )
            if str(same).lower() not in ("true", "false", "1", "0"):
                raise SettingsError(
                    f"{where}: {names[2]} is {shown(str(same))}; it takes true or false"
                )
            return Pair(first, second, str(same).lower() in ("true", "1"))
    known = ", or ".join(" ".join(names) for names in _NAMES)
    raise SettingsError(f"{where} is not a pair; its fields are {known}")
