"""The cost of padding a batch to its longest prompt."""

from typing import Final

import numpy as np

from galley.bench.serve.bars import Series
from galley.demo import heldout
from galley.lab.bench import Lab
from galley.lab.drive import drive, greedy
from galley.lab.experiment import Bars, Claim, Experiment, Figure, Finding
from galley.text.tokenizer import Tokenizer

_BATCH: Final = 16


def _run(lab: Lab) -> Finding:
    lengths = _lengths(lab, 64 if lab.quick else 256)
    batches = [lengths[i : i + _BATCH] for i in range(0, len(lengths), _BATCH)]
    padded = [max(batch) for batch in batches for _ in batch]
    wasted = 1 - sum(lengths) / sum(padded)
    engine = lab.engine(weight_dtype="int8", max_running=_BATCH, kv_cache_tokens=4096)

    def seconds(wanted: list[int]) -> float:
        requests = greedy(engine, lab.prompts(wanted), [1] * len(wanted))
        return drive(engine, requests).seconds

    slower = lab.ratio(lambda: seconds(padded), lambda: seconds(lengths))
    figures = [
        Figure.exact(100 * wasted),
        Figure(measured=slower, predicted=sum(padded) / sum(lengths)),
    ]
    return Finding(
        figures=figures,
        header=["batches", "tokens computed", "of them useful"],
        rows=[
            ["padded to the longest", str(sum(padded)), f"{1 - wasted:.0%}"],
            ["ragged", str(sum(lengths)), "100%"],
        ],
        pictures=[
            Bars(
                title="Tokens of the prompts",
                unit="tokens",
                names=["padded", "ragged"],
                series=[Series("computed", [sum(padded), sum(lengths)])],
            )
        ],
        notes=[
            f"{len(lengths)} prompts of the bundled held-out set, {_BATCH} in a batch, from "
            f"{min(lengths)} to {max(lengths)} tokens. Galley's batches are ragged; padding is simulated "
            "by prompts as long as the longest."
        ],
    )


def _lengths(lab: Lab, count: int) -> list[int]:
    tokenizer = Tokenizer.load(lab.folder)
    items = [item for number in heldout.SETS for item in heldout.read(number)]
    chosen = np.random.default_rng(0).permutation(len(items))[:count]
    texts = ["\n".join(str(m["content"]) for m in items[i].messages) for i in chosen]
    return [min(len(tokenizer.encode(text)), lab.context // 2) for text in texts]


EXPERIMENT: Final = Experiment(
    name="padding",
    title="Waste by padding",
    statement="In a batch that is padded to its longest text, about 40 % of the computed tokens are "
    "padding.",
    source="ByteTransformer, arXiv:2210.03052 (texts of 0.6 of the longest on average)",
    prediction="Time in proportion to the tokens computed.",
    claims=(
        Claim(figure="padding among the tokens", unit="%", low=30, high=50),
        Claim(figure="time of padded to ragged batches", unit="times", low=1.3),
    ),
    run=_run,
)
