"""Prefill is bound by arithmetic, decode by bandwidth."""

from typing import Final

from galley.bench.engine import Workload, bench_engine
from galley.bench.machine import read_rate
from galley.bench.report import PEAK_KIND, Point
from galley.bench.serve.chart import Line
from galley.lab.bench import Lab
from galley.lab.experiment import Claim, Curves, Experiment, Figure, Finding
from galley.plan.steps import Shares
from galley.types.model_info import StepCosts

_ASSUMED: Final = Shares()


def _run(lab: Lab) -> Finding:
    sizes = lab.sizes("bf16")
    amount = min(max(sizes.step_weights, 1 << 20), 256 << 20)
    settings = lab.with_(weight_dtype="bf16")
    prompt = min(512, lab.context // 2)
    work = Workload(
        prompt=prompt,
        decode=16 if lab.quick else 48,
        context=16,
        batches=(1, 8, 32),
        repeats=lab.repeats,
    )
    info, points = bench_engine(
        settings, work, lab.peaks, lambda: read_rate(settings.threads, amount)
    )
    program = info.require_program()
    rate = lab.machine(sizes).bandwidth * 1e9
    peak = lab.peaks.operations[PEAK_KIND[program.activations]].median
    prefill, decode = points[0], points[1]
    turn = peak / rate
    return Finding(
        figures=[
            Figure(measured=decode.read_share, predicted=_ASSUMED.bandwidth),
            Figure(
                measured=prefill.operations_per_s.scaled(1 / peak),
                predicted=_ASSUMED.arithmetic_of(prompt),
            ),
        ],
        header=["work", "operations a byte", "GOPS", "GB/s", "of the peak", "of the bandwidth"],
        rows=[
            [
                point.work if point.work == "prefill" else f"decode, {point.batch} at once",
                f"{_intensity(point):.1f}",
                f"{point.operations_per_s.median / 1e9:.1f}",
                f"{point.bytes_per_s.median / 1e9:.1f}",
                f"{point.operation_share:.0%}",
                f"{point.read_share.median:.0%}",
            ]
            for point in points
        ],
        pictures=[_picture(points, rate, peak, program.costs)],
        notes=[
            f"The machine reads {rate / 1e9:.0f} GB/s (of {amount >> 20} MiB, as the weights take) and "
            f"computes {peak / 1e9:.0f} GOPS of {program.activations}: below {turn:.1f} operations a byte, "
            "bandwidth is the limit.",
            "Weights of a few megabytes stay in the caches, where bandwidth is several times as high; then "
            "the fixed costs of a step count. Use --model for one that does not fit.",
        ],
    )


def _intensity(point: Point) -> float:
    return point.operations_per_s.median / point.bytes_per_s.median


def _picture(points: list[Point], rate: float, peak: float, costs: StepCosts) -> Curves:
    most = 1.25 * max(*map(_intensity, points[1:]), peak / rate)
    xs = [most * i / 50 for i in range(1, 51)]
    shown = [point for point in points if _intensity(point) <= most]
    return Curves(
        title="Roofline",
        x="operations a byte",
        y="GOPS",
        lines=[
            Line("limit of the machine", xs, [min(peak, x * rate) / 1e9 for x in xs], 0),
            *(
                Line(
                    f"{point.work}, {point.batch} at once",
                    [_intensity(point)],
                    [point.operations_per_s.median / 1e9],
                    number,
                    dots=True,
                )
                for number, point in enumerate(shown, 1)
            ),
        ],
    )


EXPERIMENT: Final = Experiment(
    name="roofline",
    title="Prefill is bound by arithmetic, decode by bandwidth",
    statement="A prompt computes many tokens with each weight that is read, so arithmetic limits it; a "
    "decode step reads all weights for a single token, so memory bandwidth limits it.",
    source="Roofline, Williams, Waterman and Patterson 2009; LLM Inference Unveiled, arXiv:2402.16363",
    prediction=f"The shares that galley plan assumes: {_ASSUMED.bandwidth:.0%} of the bandwidth, "
    f"{_ASSUMED.arithmetic_of(1):.0%} of the peak.",
    claims=(
        Claim(figure="share of the bandwidth that decode reaches", unit="of 1", low=0.5, high=1.2),
        Claim(
            figure="share of the arithmetic that prefill reaches", unit="of 1", low=0.4, high=1.2
        ),
    ),
    run=_run,
)
