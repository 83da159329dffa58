"""Measurements of one replica by ``galley bench serve``, for the calibration of a simulation."""

from pathlib import Path
from typing import Final

from galley.bench.serve.results import Point, read_report
from galley.errors import SettingsError
from galley.plan.cluster.calibrate import Measured

_MOST_CACHED: Final = 0.05
"""Share of cached prompt tokens above which the time of prompts cannot be told from the report."""


def measured_points(file: Path) -> list[Measured]:
    """Read the runs with a fixed concurrency from a report.

    Raises:
        SettingsError: it is not a report, has no run with one request at a time, or prompts were cached.
    """
    found = [_measured(point, file) for point in read_report(file).points if _is_of_use(point)]
    # Where prompts wait for each other, several times of prompts give the same TTFT.
    if not any(run.concurrency == 1 for run in found):
        raise SettingsError(
            f"--measured {file}: no run of galley bench serve with --concurrency 1 and streamed answers of "
            "two tokens or more, whose server counts tokens; measure with --concurrency 1,8,32"
        )
    return found


def _is_of_use(point: Point) -> bool:
    usable = point.kind == "concurrency" and point.counted and point.output_tokens >= 2
    return usable and point.ttft_s is not None and point.tpot_s is not None and point.completed > 0


def _measured(point: Point, file: Path) -> Measured:
    assert point.ttft_s is not None
    assert point.tpot_s is not None
    if point.cached_share > _MOST_CACHED:
        raise SettingsError(
            f"--measured {file}: {point.cached_share:.0%} of the prompts of {point.name} came from the "
            "prefix cache; measure with prompts that share nothing"
        )
    return Measured(
        concurrency=round(point.load),
        requests=point.completed,
        prompt=max(1, round(point.prompt_tokens)),
        output=round(point.output_tokens),
        ttft=point.ttft_s.mean,
        tpot=point.tpot_s.mean,
    )
