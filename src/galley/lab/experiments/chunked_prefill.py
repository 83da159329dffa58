"""How long decoding stops when a long prompt arrives."""

from typing import Final

from galley.bench.serve.bars import Series
from galley.engine.engine import Engine
from galley.lab.bench import Lab
from galley.lab.drive import drive, greedy
from galley.lab.experiment import Bars, Claim, Experiment, Figure, Finding

_DECODING: Final = 4
_CHUNKS: Final = (64, 256)


def _run(lab: Lab) -> Finding:
    prompt = min(1024, lab.context // 2)
    sizes = (*_CHUNKS, prompt + _DECODING)
    engines = {
        chunk: lab.engine(
            weight_dtype="int8",
            max_batch_tokens=chunk,
            max_running=_DECODING + 1,
            kv_cache_tokens=8192,
        )
        for chunk in sizes
    }

    def stall(chunk: int) -> tuple[float, float]:
        return _stall(lab, engines[chunk], prompt)

    found = {chunk: [stall(chunk) for _ in range(lab.repeats + 1)][1:] for chunk in sizes}
    gaps = {chunk: sorted(gap for gap, _ in runs)[len(runs) // 2] for chunk, runs in found.items()}
    firsts = {chunk: sorted(t for _, t in runs)[len(runs) // 2] for chunk, runs in found.items()}
    small, whole = sizes[0], sizes[-1]
    shorter = lab.ratio(lambda: stall(whole)[0], lambda: stall(small)[0])
    names = [f"chunks of {chunk}" if chunk != whole else "whole" for chunk in sizes]
    return Finding(
        figures=[Figure(measured=shorter, predicted=prompt / (small - _DECODING))],
        header=["prompt", "longest gap of others, ms", "its TTFT, ms"],
        rows=[
            [name, f"{1e3 * gaps[chunk]:.2f}", f"{1e3 * firsts[chunk]:.2f}"]
            for name, chunk in zip(names, sizes, strict=True)
        ],
        pictures=[
            Bars(
                title="A long prompt among others",
                unit="ms",
                names=names,
                series=[
                    Series("longest gap of others", [1e3 * gaps[chunk] for chunk in sizes]),
                    Series("its time to first token", [1e3 * firsts[chunk] for chunk in sizes]),
                ],
            )
        ],
        notes=[
            f"A prompt of {prompt} tokens arrives while {_DECODING} sequences decode. Small chunks cost "
            "the prompt itself some time: it takes more steps, each of which decodes, too."
        ],
    )


def _stall(lab: Lab, engine: Engine, prompt: int) -> tuple[float, float]:
    """Return the longest gap of the decoding sequences, and the seconds to the newcomer's first token."""
    prompts = lab.prompts([8] * _DECODING + [prompt])
    steps = 16 + prompt // 32
    alone = drive(engine, greedy(engine, prompts[:-1], [steps] * _DECODING))
    requests = greedy(engine, prompts, [steps] * _DECODING + [1])
    run = drive(engine, requests, [0.0] * _DECODING + [alone.seconds / 2])
    gaps = [gap for request in run.requests[:-1] for gap in request.gaps]
    return max(gaps), run.requests[-1].ttft


EXPERIMENT: Final = Experiment(
    name="chunked-prefill",
    title="Chunked prefill",
    statement="A long prompt that is computed in chunks, together with decoding sequences, no longer "
    "stalls them.",
    source="Sarathi-Serve, arXiv:2403.02310",
    prediction="The gap in proportion to the tokens of a step.",
    claims=(
        Claim(figure="longest gap with the whole prompt to that with chunks", unit="times", low=3),
    ),
    run=_run,
)
