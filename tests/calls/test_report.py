"""The estimate of a call's word errors, and its report over days."""

import json
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

from galley.calls.estimate import estimate
from galley.calls.folder import CallRecord, write_json
from galley.calls.quality import Quality
from galley.calls.report import BASELINE_DAYS, CallQuality, days_of, drift_of
from galley.cli.calls import calls_group

TODAY = date(2026, 11, 20)


def quality(wer: float | None = None, **fields: float) -> Quality:
    given = {"seconds": 60.0, "speech_share": 0.5, "clipped_share": 0.0, **fields}
    return msgspec.convert(
        {"speech_level_db": -20.0, "snr_db": 20.0, "estimated_wer": wer, **given}, Quality
    )


def calls(day: int, mean: float, count: int = 50, spread: float = 0.05) -> list[CallQuality]:
    """Return calls of ``day`` days ago with estimates around a mean."""
    estimates = np.random.default_rng(day).normal(mean, spread, count)
    estimates += mean - estimates.mean()
    when = TODAY - timedelta(days=day)
    return [CallQuality(when, quality(float(wer))) for wer in estimates]


@pytest.mark.parametrize(
    ("probability", "logprob", "unsure", "truth"),
    [
        # Calls that whisper-tiny.en heard: readings at 40 and 5 dB, others at 10, 2 and -3 dB of noise.
        (0.9152, -0.1981, 0.0227, 0 / 44),
        (0.7171, -0.4845, 0.2619, 12 / 44),
        (0.8281, -0.4966, 0.129, 2 / 30),
        (0.5749, -0.8371, 0.4571, 19 / 30),
        (0.4551, -0.9143, 0.6176, 27 / 30),
    ],
)
def test_the_estimate_is_near_the_truth(
    probability: float, logprob: float, unsure: float, truth: float
) -> None:
    heard = quality(
        mean_word_probability=probability, mean_logprob=logprob, unsure_words_share=unsure
    )
    assert estimate(heard) == pytest.approx(truth, abs=0.12)


def test_a_call_without_words_has_no_estimate() -> None:
    assert estimate(quality()) is None
    assert estimate(quality(mean_logprob=-0.2)) is None


def test_days_have_means_of_known_values() -> None:
    found = [*calls(1, 0.1, 2), *calls(0, 0.2, 4), CallQuality(TODAY, quality(None))]
    before, today = days_of(found)
    assert (before.day, before.calls, before.estimated_wer) == (TODAY - timedelta(days=1), 2, 0.1)
    assert (today.calls, today.estimated_wer, today.hours) == (5, 0.2, round(5 / 60, 3))
    assert days_of([CallQuality(TODAY, quality(None))])[0].estimated_wer is None


@pytest.mark.parametrize(
    ("last", "spread", "alarm"),
    [(0.115, 0.02, True), (0.105, 0.02, False), (0.09, 0.02, False), (0.115, 0.3, False)],
)
def test_a_rise_by_a_tenth_that_is_not_chance_is_a_drift(
    last: float, spread: float, alarm: bool
) -> None:
    found = drift_of(
        [
            *calls(2, 0.1, spread=spread),
            *calls(1, 0.1, spread=spread),
            *calls(0, last, spread=spread),
        ]
    )
    assert found is not None
    assert found.last == pytest.approx(last)
    assert found.baseline == pytest.approx(0.1)
    assert found.alarm == alarm


def test_few_and_old_calls_are_not_compared() -> None:
    assert drift_of([]) is None
    assert drift_of(calls(0, 0.2)) is None
    assert drift_of([*calls(1, 0.1, 19), *calls(0, 0.2)]) is None
    assert drift_of([*calls(BASELINE_DAYS + 1, 0.1), *calls(0, 0.2)]) is None
    assert drift_of([*calls(BASELINE_DAYS, 0.1), *calls(0, 0.2)]) is not None


def test_the_command_prints_days_and_fails_on_a_drift(tmp_path: Path) -> None:
    results = tmp_path / "results"
    made = [*calls(1, 0.1, 25, 0.01), *calls(0, 0.15, 25, 0.01)]
    for number, call in enumerate(made):
        folder = results / f"{number}.wav"
        folder.mkdir(parents=True)
        record = CallRecord(
            id=folder.name,
            tenant="acme" if number % 25 else "other",
            recording="x",
            created=datetime.combine(call.day, datetime.min.time(), UTC).isoformat(),
            duration=60,
            speakers=2,
            redact=(),
            redacted={},
        )
        write_json(folder / "call.json", record)
        write_json(folder / "quality.json", call.quality)
    (results / "3.wav" / "quality.json").write_text("{")
    metrics = tmp_path / "calls.prom"
    done = CliRunner().invoke(
        calls_group, ["report", str(results), "--tenant", "acme", "--metrics", str(metrics)]
    )
    assert done.exit_code == 1, done.output
    lines = done.output.splitlines()
    assert any(line.startswith("2026-11-19      23") and "10." in line for line in lines)
    assert any(line.startswith("2026-11-20      24") and "15." in line for line in lines)
    assert "quality.json" in done.output
    assert "alarm: estimated WER 15." in lines[-1]
    written = metrics.read_text(encoding="utf-8")
    assert "galley_calls_drift 1.0" in written
    assert "galley_calls_last_day 24.0" in written
    # An older report, without the estimate.
    fields = json.loads((results / "5.wav" / "quality.json").read_text())
    del fields["estimated_wer"]
    (results / "5.wav" / "quality.json").write_text(json.dumps(fields))
    for number in range(30):
        (results / f"{number + 20}.wav" / "quality.json").unlink()
    done = CliRunner().invoke(calls_group, ["report", str(results)])
    assert done.exit_code == 0
    assert "no comparison" in done.output
