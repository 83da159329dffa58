"""A semantic cache: hits, and how many of them are right."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from galley.bench.serve.chart import Line
from galley.cache.tuning import Pair, Result, Scored, at_hit_rate, results, score
from galley.demo.question_pairs import pairs
from galley.demo.questions import QUESTIONS
from galley.errors import SettingsError
from galley.formats.source import BUNDLED_EMBED
from galley.lab.bench import Lab
from galley.lab.experiment import Claim, Curves, Experiment, Figure, Finding
from galley.llm.llm import LLM
from galley.settings.engine import EngineSettings

_BUDGET: Final = 0.01
"""Share of false hits with which the threshold is chosen."""
_TOGETHER: Final = 64
_SHOWN: Final = 50
"""Fewest hits of a point of the picture."""


def _run(lab: Lab) -> Finding:
    count = 1000 if lab.quick else 4000
    settings = EngineSettings(model=BUNDLED_EMBED, threads=lab.settings.threads)
    with LLM.from_settings(settings) as llm:
        seen, others = (scored(llm, half(number, count)) for number in (0, 1))
    best = max(
        (one for one in results(seen) if one.hits and one.false_rate <= _BUDGET),
        key=lambda one: (one.hit_rate, one.threshold),
        default=None,
    )
    if best is None:
        raise SettingsError(f"no threshold keeps false hits below {_BUDGET:.0%}")
    [here] = [one for one in results(others) if one.threshold == best.threshold]
    alone, expected = (
        at_hit_rate(results(some, facts=False), here.hit_rate) for some in (others, seen)
    )
    assert alone is not None  # both halves have pairs that mean the same
    assert expected is not None
    rows = {"cosine and facts": here, "cosine alone, as many hits": alone}
    return Finding(
        figures=[
            Figure.exact(100 * here.hit_rate, 100 * best.hit_rate),
            Figure.exact(_right(here), _right(best)),
            Figure.exact(_right(alone), _right(expected)),
        ],
        header=["a hit is decided by", "threshold", "hits", "false", "hit rate"],
        rows=[
            [name, f"{one.threshold:.3f}", str(one.hits), str(one.false), f"{one.hit_rate:.1%}"]
            for name, one in rows.items()
        ],
        pictures=[_picture(others)],
        notes=[
            f"{len(others)} pairs of questions to a help desk, half of which mean the same, made from "
            "templates. The facts are numbers, names, dates, units, negations, opposites, actions, things "
            "and who does what to whom. The threshold is that with the most hits of which at most "
            f"{_BUDGET:.0%} are false, on as many pairs of other questions. `galley cache tune` finds it "
            "for your own.",
        ],
    )


def half(number: int, count: int) -> list[Pair]:
    """Return pairs of every other question.

    Args:
        number: of the first question, 0 or 1; the two halves have no question in common.
        count: the number of pairs.
    """
    numbers = tuple(range(number, len(QUESTIONS), 2))
    return [Pair(one.a, one.b, one.same) for one in pairs(count, 1, numbers)]


def scored(
    llm: LLM, some: Sequence[Pair], rankings: Sequence[float | None] | None = None
) -> list[Scored]:
    """Return what a cache that compares with this model knows of each pair.

    Args:
        llm: the embedding model.
        some: the pairs.
        rankings: as for :func:`galley.cache.tuning.score`.
    """
    texts = list(dict.fromkeys(text for pair in some for text in pair[:2]))
    parts = [texts[begin : begin + _TOGETHER] for begin in range(0, len(texts), _TOGETHER)]
    vectors = np.concatenate([llm.embed(part, truncate=True) for part in parts])
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    place = {text: number for number, text in enumerate(texts)}
    return score(some, lambda a, b: float(vectors[place[a]] @ vectors[place[b]]), rankings)


def _right(one: Result) -> float:
    return 100 * (1 - one.false_rate)


def _picture(some: Sequence[Scored]) -> Curves:
    lines = []
    for name, color, facts in (("cosine alone", 0, False), ("cosine and facts", 1, True)):
        shown = [one for one in results(some, facts=facts) if one.hits >= _SHOWN]
        points = list({one.hits: one for one in shown}.values())
        lines.append(
            Line(
                name, [100 * one.hit_rate for one in points], [_right(one) for one in points], color
            )
        )
    return Curves(
        title="Right hits by hit rate",
        x="% of the same questions that are hits",
        y="% right",
        lines=lines,
    )


EXPERIMENT: Final = Experiment(
    name="semantic-cache",
    title="A semantic cache: hits, and how many are right",
    statement="A cache that compares questions by their vectors answers 60 to 70 % of the questions that "
    "were asked before in other words, and more than 97 % of its hits are right.",
    source="GPT Semantic Cache, arXiv:2411.05276",
    prediction="The same figures on the questions with which the threshold was chosen.",
    claims=(
        Claim(figure="same questions that are hits", unit="%", low=60),
        Claim(figure="right of the hits, facts compared", unit="%", low=97),
        Claim(figure="right of the hits, by cosine alone", unit="%", low=97),
    ),
    run=_run,
)
