"""Time to the first token with a shared prefix."""

import functools
import itertools
from collections.abc import Iterator
from typing import Final

import numpy as np

from galley.bench.report import Spread
from galley.bench.serve.chart import Line
from galley.engine.engine import Engine
from galley.lab.bench import Lab
from galley.lab.drive import drive, greedy
from galley.lab.experiment import Claim, Curves, Experiment, Figure, Finding

SHARES: Final = (0.0, 0.25, 0.5, 0.6, 0.75, 0.9)
_CLAIMED: Final = 0.6
"""Share of the prompt that all requests have in common where the claim is checked."""


def _run(lab: Lab) -> Finding:
    prompt = min(512, lab.context // 2)
    engine = lab.engine(weight_dtype="int8", prefix_cache=True, kv_cache_tokens=8192)
    draws = itertools.count()

    def ttft(share: float) -> float:
        return _ttft(lab, engine, prompt, share, draws)

    times = {share: lab.spread(functools.partial(ttft, share)) for share in SHARES}
    left = lab.ratio(lambda: ttft(_CLAIMED), lambda: ttft(0.0))
    less = Spread(*(100 * (1 - share) for share in (left.median, left.high, left.low)))
    return Finding(
        figures=[Figure(measured=less, predicted=100 * _CLAIMED)],
        header=["shared", "TTFT, ms", "less"],
        rows=[
            [f"{share:.0%}", f"{1e3 * s.median:.2f}", f"{1 - s.median / times[0.0].median:.0%}"]
            for share, s in times.items()
        ],
        pictures=[
            Curves(
                title="Time to first token",
                x="% of the prompt that is shared",
                y="ms",
                lines=[
                    Line(
                        "measured",
                        [100 * share for share in times],
                        [1e3 * s.median for s in times.values()],
                        1,
                        dots=True,
                    ),
                    Line(
                        "predicted",
                        [100 * share for share in times],
                        [1e3 * (1 - share) * times[0.0].median for share in times],
                        0,
                    ),
                ],
            )
        ],
        notes=[
            f"Prompts of {prompt} tokens; the shared part is in the cache from an earlier request."
        ],
    )


def _ttft(lab: Lab, engine: Engine, prompt: int, share: float, draws: Iterator[int]) -> float:
    """Return the seconds of a prompt whose first part an earlier prompt had."""
    random = np.random.default_rng(next(draws))
    vocab = lab.model.program.vocab_size
    whole = [int(token) for token in random.integers(vocab, size=prompt)]
    other = whole[: round(share * prompt)]
    other += [int(token) for token in random.integers(vocab, size=prompt - len(other))]
    drive(engine, greedy(engine, [other], [1]))
    return drive(engine, greedy(engine, [whole], [1])).requests[0].ttft


EXPERIMENT: Final = Experiment(
    name="prefix-cache",
    title="Prefix cache and the time to first token",
    statement="Keeping the keys and values of a shared system prompt takes 50 to 70 % off the time to "
    "first token.",
    source="SGLang (RadixAttention), arXiv:2312.07104; providers' pages on prompt caching",
    prediction="Time in proportion to the part of the prompt that is computed; here 60 % is shared.",
    claims=(Claim(figure="less time to first token", unit="%", low=50, high=70),),
    run=_run,
)
