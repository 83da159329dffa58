"""Statistics over the requests of a run."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from galley.bench.serve.load import Run
from galley.bench.serve.results import Point, Quantiles, Timeline
from galley.bench.serve.samples import Sample

SLICES: Final = 60


def summarize(
    run: Run,
    *,
    kind: str,
    load: float,
    objective: Mapping[str, float],
    price_per_hour: float | None = None,
) -> Point:
    """Compute the figures of a run.

    Args:
        run: at least one request.
        kind: see :class:`Point`.
        load: see :class:`Point`.
        objective: "ttft", "tpot" or "latency" -> most seconds; empty is none.
        price_per_hour: price of the server's machine, US dollars.
    """
    samples = run.samples
    done = [sample for sample in samples if not sample.error]
    seconds = max(s.ended for s in samples) - min(s.started for s in samples)
    output, prompt = sum(s.output_tokens for s in done), sum(s.prompt_tokens for s in done)
    audio = sum(s.audio_seconds for s in done)
    good = sum(meets(sample, objective) for sample in done)
    metrics = _metrics(done)
    quantiles = {name: quantiles_of(values) for name, values in metrics.items()}
    lag = quantiles_of([sample.started - sample.due for sample in samples])
    assert lag is not None
    return Point(
        kind=kind,
        load=load,
        requests=len(samples),
        completed=len(done),
        errors=dict(Counter(s.error for s in samples if s.error)),
        details={s.error: s.detail for s in reversed(samples) if s.error},
        duration_s=seconds,
        counted=all(sample.counted for sample in done),
        prompt_tokens=prompt / max(1, len(done)),
        output_tokens=output / max(1, len(done)),
        cached_share=sum(s.cached_tokens for s in done) / max(1, prompt),
        ttft_s=quantiles["ttft_s"],
        tpot_s=quantiles["tpot_s"],
        inter_token_s=quantiles["inter_token_s"],
        latency_s=quantiles["latency_s"],
        requests_per_s=len(done) / seconds,
        output_tokens_per_s=output / seconds,
        total_tokens_per_s=(output + prompt) / seconds,
        audio_seconds_per_s=audio / seconds if audio else None,
        goodput_per_s=good / seconds if objective else None,
        goodput_share=good / len(samples) if objective else None,
        cost_per_million_output=_cost(price_per_hour, output / seconds),
        cost_per_million=_cost(price_per_hour, (output + prompt) / seconds),
        lag_s=lag,
        loop_delay_s=quantiles_of(run.delays) or Quantiles(0.0, 0.0, 0.0, 0.0, 0.0),
        cdfs={name: cdf(values) for name, values in metrics.items() if values},
        timeline=timeline(samples, SLICES),
    )


def quantiles_of(values: Sequence[float]) -> Quantiles | None:
    """Return mean and quantiles; None if there are no values."""
    if not len(values):
        return None
    p50, p95, p99 = (float(x) for x in np.percentile(values, (50, 95, 99)))
    return Quantiles(float(np.mean(values)), p50, p95, p99, float(np.max(values)), len(values))


def cdf(values: Sequence[float]) -> list[float]:
    """Return the quantiles at 0, 1, ... 100 %, of at least one value."""
    return [float(x) for x in np.percentile(values, range(101))]


def meets(sample: Sample, objective: Mapping[str, float]) -> bool:
    """Return whether a response met the objective; one without the figure (of one token) does."""
    return all(
        (value := getattr(sample, name)) is None or value <= most
        for name, most in objective.items()
    )


def timeline(samples: Sequence[Sample], slices: int) -> Timeline:
    """Divide the run, from the first request sent to the last answer, into ``slices`` of equal length."""
    began = min(sample.started for sample in samples)
    width = max(max(sample.ended for sample in samples) - began, 1e-9) / slices
    edges = width * np.arange(slices + 1)
    starts = np.array([s.started for s in samples]) - began
    ends = np.array([s.ended for s in samples]) - began
    # Request seconds in each slice: the part of each request that falls into the slice.
    inside = np.zeros(slices)
    for start, end in zip(starts, ends, strict=True):
        inside += np.clip(np.minimum(end, edges[1:]) - np.maximum(start, edges[:-1]), 0, None)
    streamed = [s for s in samples if s.chunks]
    # A chunk of text can be several tokens; an answer's tokens are divided equally among its chunks.
    times = np.array([t for s in streamed for t in s.chunks]) - began
    tokens = np.array([s.output_tokens / len(s.chunks) for s in streamed for _ in s.chunks])
    came, _ = np.histogram(times, bins=edges, weights=tokens)
    firsts = np.array([s.chunks[0] for s in streamed]) - began
    ttfts = np.array([s.ttft for s in streamed])
    counts, _ = np.histogram(firsts, bins=edges)
    sums, _ = np.histogram(firsts, bins=edges, weights=ttfts)
    return Timeline(
        slice_s=width,
        running=[float(x) for x in inside / width],
        output_tokens_per_s=[float(x) for x in came / width],
        ttft_s=[float(s / n) if n else None for s, n in zip(sums, counts, strict=True)],
    )


def _metrics(samples: Sequence[Sample]) -> dict[str, list[float]]:
    return {
        "ttft_s": [s.ttft for s in samples if s.ttft is not None],
        "tpot_s": [s.tpot for s in samples if s.tpot is not None],
        "inter_token_s": [float(gap) for s in samples for gap in np.diff(s.chunks)],
        "latency_s": [s.latency for s in samples],
    }


def _cost(price_per_hour: float | None, tokens_per_s: float) -> float | None:
    """Return US dollars for a million tokens, computed as in ``galley plan``."""
    if price_per_hour is None or not tokens_per_s:
        return None
    return price_per_hour / 3600 / tokens_per_s * 1e6
