"""Speculative decoding by acceptance."""

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from galley.bench.report import Spread
from galley.bench.serve.chart import Line
from galley.demo import heldout
from galley.lab.bench import Lab
from galley.lab.experiment import Claim, Curves, Experiment, Figure, Finding
from galley.llm.llm import LLM
from galley.types import SamplingParams

_Gain: TypeAlias = tuple[Spread, float, float]
"""Times as fast, share of draft tokens accepted, and the bound if verifying were free."""

_PARAMS: Final = SamplingParams(temperature=0.0, max_tokens=120)


def _run(lab: Lab) -> Finding:
    tasks = _conversations(6 if lab.quick else 20)
    kept: dict[str, _Gain] = {}
    same: list[bool] = []
    with (
        LLM.from_settings(lab.with_(weight_dtype="int8", kv_cache_tokens=4096)) as plain,
        LLM.from_settings(
            lab.with_(weight_dtype="int8", kv_cache_tokens=4096, speculation="prompt")
        ) as drafting,
    ):
        for task, talks in tasks.items():
            for llm in (plain, drafting):
                llm.chat(talks[:1], _PARAMS)  # the first request is slower than the rest
            ratios, tokens, proposed, accepted = list[float](), 0, 0, 0
            for talk in talks:
                before, expected = _timed(plain, talk)
                after, choice = _timed(drafting, talk)
                same.append(choice.token_ids == expected.token_ids)
                ratios.append(before / after)
                tokens += len(choice.token_ids)
                proposed += choice.timing.proposed
                accepted += choice.timing.accepted
            kept[task] = (
                Spread.of(ratios),
                accepted / proposed if proposed else 0.0,
                tokens / max(1, tokens - accepted),
            )
    best = max(kept, key=lambda task: kept[task][1])
    return Finding(
        figures=[
            Figure(measured=kept[best][0], predicted=kept[best][2]),
            Figure.exact(100 * sum(same) / len(same)),
        ],
        header=["task", "accepted", "times as fast", "if verifying were free"],
        rows=[
            [task, f"{share:.0%}", f"{gain.median:.2f}", f"{bound:.2f}"]
            for task, (gain, share, bound) in kept.items()
        ],
        pictures=[_picture(kept)],
        notes=[
            "Draft tokens are copied from the prompt (prompt lookup); the tasks are those of the bundled "
            f"model's held-out set. The claim is checked on {best!r}, the task with the highest "
            "acceptance. The engine verifies only where it measured that to be faster."
        ],
    )


def _picture(kept: Mapping[str, _Gain]) -> Curves:
    order = sorted(kept, key=lambda task: kept[task][1])
    return Curves(
        title="Gain by acceptance",
        x="% of the draft tokens that were accepted",
        y="times as fast",
        lines=[
            Line(
                name,
                [100 * kept[task][1] for task in order],
                [pick(kept[task]) for task in order],
                color,
                dots=True,
                labels=order,
            )
            for name, color, pick in (("measured", 1, _median), ("predicted", 0, _bound))
        ],
    )


def _median(one: _Gain) -> float:
    return one[0].median


def _bound(one: _Gain) -> float:
    return one[2]


def _timed(llm: LLM, talk: Sequence[Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    output = llm.chat([list(talk)], _PARAMS)[0]
    return time.perf_counter() - began, output.choices[0]


def _conversations(count: int) -> dict[str, list[list[Any]]]:
    tasks: dict[str, list[list[Any]]] = {}
    for number in heldout.SETS:
        for item in heldout.read(number):
            talks = tasks.setdefault(item.task, [])
            if len(talks) < count:
                talks.append(list(item.messages))
    return tasks


EXPERIMENT: Final = Experiment(
    name="speculation",
    title="Speculative decoding by acceptance",
    statement="Draft tokens that are verified together make decoding 2 to 3 times as fast, without "
    "changing the text.",
    source="Leviathan et al., arXiv:2211.17192; prompt lookup, Saxena 2023",
    prediction="Tokens to steps, if a step that verifies took no longer than one that does not.",
    claims=(
        Claim(figure="speed with speculation to that without", unit="times", low=2, high=3),
        Claim(figure="answers of the same tokens", unit="%", low=100),
    ),
    run=_run,
)
