"""The quality of a folder's calls by day, and whether it got worse."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Final, NamedTuple

import msgspec
import numpy as np

from galley.calls.folder import CallFolder
from galley.calls.quality import Quality
from galley.errors import RequestError

BASELINE_DAYS: Final = 28
"""Days before the last one that it is compared with."""
LEAST_CALLS: Final = 20
"""Fewest calls of the last day, and of the days before, for a comparison."""
RISE: Final = 0.10
"""Relative rise of the estimated word error rate that is a drift."""
_ERRORS: Final = 2.0
"""Standard errors that the rise must exceed, so that chance alone rarely raises the alarm."""


class CallQuality(NamedTuple):
    """A call's day, UTC, and its quality."""

    day: date
    quality: Quality


@dataclass(frozen=True)
class Day:
    """The calls of one day; the means are of calls that have a value, None if none has.

    Attributes:
        hours: length of the recordings.
        estimated_wer, snr_db: means over calls.
        clipped_share: mean share of samples at full scale.
    """

    day: date
    calls: int
    hours: float
    estimated_wer: float | None
    snr_db: float | None
    clipped_share: float | None


@dataclass(frozen=True)
class Drift:
    """A day's estimated word error rate, compared with that of the days before.

    Attributes:
        last, baseline: mean estimates of the last day's calls, and of those of up to 28 days before.
        alarm: the rise is 10 % or more, and more than chance explains.
    """

    last: float
    baseline: float
    alarm: bool


def read_calls(folder: CallFolder, tenant: str | None, damaged: list[str]) -> Iterator[CallQuality]:
    """Yield the calls that have a quality report; unreadable files are added to ``damaged``.

    Args:
        folder: the folder of results.
        tenant: whose calls; None: all.
        damaged: gets a message for each.
    """

    def note(error: RequestError) -> None:
        damaged.append(str(error))

    for place, record in folder.calls(note):
        file = place / "quality.json"
        if (tenant is not None and record.tenant != tenant) or not file.exists():
            continue
        try:
            quality = msgspec.json.decode(file.read_bytes(), type=Quality)
            yield CallQuality(record.time.date(), quality)
        except (OSError, ValueError) as error:  # msgspec's errors are ValueErrors
            damaged.append(f"{file}: {error}")


def days_of(calls: Iterable[CallQuality]) -> list[Day]:
    """Return a summary of each day with calls, in order."""
    by_day: dict[date, list[Quality]] = {}
    for call in calls:
        by_day.setdefault(call.day, []).append(call.quality)
    return [
        Day(
            day=day,
            calls=len(found),
            hours=round(sum(one.seconds for one in found) / 3600, 3),
            estimated_wer=_mean([one.estimated_wer for one in found]),
            snr_db=_mean([one.snr_db for one in found]),
            clipped_share=_mean([one.clipped_share for one in found]),
        )
        for day, found in sorted(by_day.items())
    ]


def drift_of(calls: Sequence[CallQuality]) -> Drift | None:
    """Compare the last day's estimates with those of the days before; None: there are too few calls."""
    known = [(call.day, call.quality.estimated_wer) for call in calls]
    estimates = [(day, wer) for day, wer in known if wer is not None]
    if not estimates:
        return None
    last_day = max(day for day, _ in estimates)
    first = last_day - timedelta(days=BASELINE_DAYS)
    last = np.array([wer for day, wer in estimates if day == last_day])
    before = np.array([wer for day, wer in estimates if first <= day < last_day])
    if min(len(last), len(before)) < LEAST_CALLS:
        return None
    rise = float(last.mean() - before.mean())
    error = math.sqrt(last.var(ddof=1) / len(last) + before.var(ddof=1) / len(before))
    alarm = rise >= RISE * before.mean() and rise > _ERRORS * error
    return Drift(float(last.mean()), float(before.mean()), bool(alarm))


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(float(np.mean(known)), 4) if known else None
