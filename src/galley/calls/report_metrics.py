"""The last day's figures of a folder of calls as a file for Prometheus."""

from collections.abc import Sequence
from pathlib import Path

from prometheus_client import CollectorRegistry, Gauge, write_to_textfile

from galley.calls.report import Day, Drift
from galley.errors import SettingsError


def write_metrics(path: Path, days: Sequence[Day], drift: Drift | None) -> None:
    """Write the figures of the last day; one without a value has no line. The file is replaced at once.

    Raises:
        SettingsError: it cannot be written.
    """
    registry = CollectorRegistry()
    last = days[-1] if days else None

    def add(name: str, text: str, value: float | None) -> None:
        if value is not None:
            Gauge(f"galley_calls_{name}", text, registry=registry).set(value)

    if last is not None:
        add("last_day", "Calls of the last day with calls.", last.calls)
        add("estimated_wer", "Mean estimated word error rate of the last day.", last.estimated_wer)
        add("snr_decibels", "Mean signal-to-noise ratio of the last day, in dB.", last.snr_db)
    if drift is not None:
        add("estimated_wer_baseline", "Mean estimate of the days before.", drift.baseline)
        add("drift", "1 if the estimate rose by 10 % and by more than chance.", float(drift.alarm))
    try:
        write_to_textfile(str(path), registry)
    except OSError as error:
        raise SettingsError(f"cannot write {path}: {error.strerror}") from error
