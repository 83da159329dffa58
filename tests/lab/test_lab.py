"""``galley lab``: verdicts, pages, and runs that continue where they were."""

import json
import math
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import numpy as np
import pytest

from galley.bench.report import Spread
from galley.bench.serve.bars import Series, bars
from galley.demo.speech import CALL
from galley.engine.read_model import read_model
from galley.errors import SettingsError
from galley.formats.source import BUNDLED_SPEECH, resolve_model
from galley.lab.bench import Lab
from galley.lab.experiment import Figure, Finding, judge, verdict
from galley.lab.experiments.codecs import CODECS
from galley.lab.page import page, summary
from galley.lab.registry import EXPERIMENTS, experiment_of
from galley.lab.run import Outcome, Results, find, read_results
from galley.lab.speech import Spoken, recordings, through, words_added
from galley.lab.speech_roofline import encoder_operations, frames_a_row
from galley.settings.engine import EngineSettings
from galley.speech.audio import Recording
from galley.speech.features import SAMPLE_RATE
from tests.cli.command import galley
from tests.lab.findings import CONDITIONS, TWICE, finding, results
from tests.thorough import long


@pytest.mark.parametrize(
    ("spread", "judged"),
    [
        (Spread(3, 2.5, 4), "confirmed"),
        (Spread(3, 1.0, 9), "confirmed"),
        (Spread(1.9, 1.8, 2.1), "undecided"),
        (Spread(6, 0.5, 7), "undecided"),
        (Spread(1.5, 1.2, 1.9), "contradicted"),
        (Spread(6, 5.5, 7), "contradicted"),
    ],
)
def test_a_verdict_says_where_the_figure_contradicts_the_claim(spread: Spread, judged: str) -> None:
    figure = Figure(measured=spread)
    assert judge(TWICE, figure) == judged
    said = verdict(TWICE, figure)
    assert said.startswith(judged.capitalize())
    assert "2 to 5 times" in said


def test_rates_of_errors_need_a_thousand_words_for_a_verdict() -> None:
    silence = np.zeros(SAMPLE_RATE, np.float32)
    for words, judged in ((999, "undecided"), (1000, "confirmed")):
        figure = words_added([Spoken(silence, "word " * words)], 0.13, 0.10)
        assert figure.measured.median == pytest.approx(3)
        assert judge(TWICE, figure) == judged
        assert ("999 words are too few" in verdict(TWICE, figure)) == (judged == "undecided")


def test_bars_are_well_formed_and_in_proportion() -> None:
    drawn = bars("t <&>", "MB", ["a", "b"], [Series("one", [1.0, 2.0]), Series("two", [None, 4.0])])
    figure = ElementTree.fromstring(drawn)
    widths = [float(rect.get("width", "")) for rect in figure.iter("rect")]
    assert len(widths) == 3
    assert widths[1] == pytest.approx(2 * widths[0], rel=0.01)
    assert widths[2] == pytest.approx(4 * widths[0], rel=0.01)
    assert bars("t", "MB", ["a"], [Series("one", [None])]) == ""
    long = ElementTree.fromstring(bars("t", "s", ["n" * 40], [Series("one", [1.0])]))
    [rect] = long.iter("rect")
    assert float(rect.get("x", "")) > 40 * 6, "a long name has room"


def test_the_page_has_every_experiment_and_no_network() -> None:
    experiments = [experiment_of("batching"), experiment_of("kv-bytes")]
    found = results(batching=Outcome(finding=finding(1.2)))
    made = page(experiments, found)
    assert "Contradicted here" in made
    assert "Not measured" in made
    command = (
        "galley lab batching --again --model &#x27;&lt;m&amp;m&gt;&#x27; --recordings /calls.jsonl"
    )
    assert f"{command} --quick" in made
    for url in ("http://", "https://", "<script"):
        assert url not in made
    assert "&lt;lines&gt;" in made
    assert "<n>" not in made
    HTMLParser().feed(made)
    rows = summary(experiments, found.outcomes)
    assert rows[0][-1] == "contradicted"
    assert rows[1][-1] == "not measured: not run"


def test_results_of_other_conditions_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "lab.json"
    assert read_results(file, CONDITIONS) is None
    file.write_bytes(msgspec.json.encode(results(batching=Outcome(finding=finding(3.0)))))
    read = read_results(file, CONDITIONS)
    assert read is not None
    assert msgspec.json.encode(read) == file.read_bytes()
    with pytest.raises(SettingsError, match="model '<m&m>', now 'other'"):
        read_results(file, {**CONDITIONS, "model": "other"})
    file.write_text("[]")
    with pytest.raises(SettingsError, match="no results of galley lab"):
        read_results(file, CONDITIONS)


def test_every_experiment_says_what_it_is() -> None:
    for name, experiment in EXPERIMENTS.items():
        assert name == name.lower()
        assert experiment.claims
        assert experiment.source
        assert experiment.prediction
        assert not experiment.prediction.startswith("None:"), name
        for claim in experiment.claims:
            assert (claim.low, claim.high) != (None, None), name


def test_the_operations_of_an_encoder_are_those_of_its_formula() -> None:
    encoder = read_model(
        EngineSettings(model=BUNDLED_SPEECH), resolve_model(BUNDLED_SPEECH)
    ).program.encoder
    assert encoder is not None
    frames, width, inner, layers, decoder_layers = 200, 256, 1024, 4, 2
    rows = frames // 2
    convolutions = frames * 3 * 80 * width + rows * 3 * width * width
    a_row = 4 * width * width + 2 * width * inner + 2 * rows * width
    keys_and_values = decoder_layers * 2 * rows * width * width
    products = convolutions + layers * rows * a_row + keys_and_values
    assert frames_a_row(encoder) == 2
    assert encoder_operations(encoder, frames) == 2 * products


def test_an_experiment_that_fails_ends_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(lab: Lab) -> Finding:
        raise ZeroDivisionError("no loss at all")

    known = experiment_of("batching")
    lab = Lab(EngineSettings(), True, results().peaks)
    for run, problem in (
        (fails, "ZeroDivisionError: no loss at all"),
        (lambda lab: finding(math.nan), "nothing could be measured of: continuous to static"),
    ):
        made = {"batching": replace(known, run=run)}
        monkeypatch.setattr("galley.lab.registry.EXPERIMENTS", made)
        outcome = find("batching", lab)
        assert outcome.finding is None
        assert outcome.problem == problem


@pytest.mark.parametrize("command", ["lab", "tune"])
def test_other_executors_are_refused(command: str, tmp_path: Path) -> None:
    options = () if command == "lab" else ("--slo", "ttft p95 < 1s", "--trace", tmp_path)
    made = galley(command, *options, cwd=tmp_path, environ={"GALLEY_EXECUTOR": "reference"})
    assert made.returncode == 2
    assert "measures executor 'cpu', but for galley-demo executor is 'reference'" in made.stderr


def test_an_unknown_experiment_is_an_error() -> None:
    with pytest.raises(SettingsError, match=r"no experiment .fusion.; .*batching"):
        experiment_of("fusion")


def test_a_run_measures_what_the_file_lacks(tmp_path: Path) -> None:
    first = galley("lab", "--quick", "padding", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert "padding: padding among the tokens" in first.stdout
    kept = (tmp_path / "galley-lab.json").read_bytes()
    known = msgspec.json.decode(kept, type=Results)
    known.outcomes["batching"] = Outcome(finding=finding(3.0))
    written = msgspec.json.encode(known)
    (tmp_path / "galley-lab.json").write_bytes(written)
    second = galley("lab", "--quick", "padding", "batching", "--output", "p.html", cwd=tmp_path)
    assert second.returncode == 0, second.stderr
    unchanged = (tmp_path / "galley-lab.json").read_bytes() == written
    assert unchanged, "nothing was measured again"
    assert "Waste by padding" in (tmp_path / "p.html").read_text()
    changed = {"GALLEY_ACTIVATIONS": "float32"}
    other = galley("lab", "padding", cwd=tmp_path, environ=changed)
    assert other.returncode == 2
    assert "run 'quick', now 'full'" in other.stderr
    assert """other settings 'defaults', now '{"activations": "float32"}'""" in other.stderr


def test_a_recording_comes_back_from_each_codec() -> None:
    time = np.arange(2 * SAMPLE_RATE) / SAMPLE_RATE
    tone = (0.3 * np.sin(2 * np.pi * 440 * time)).astype(np.float32)
    for codec in CODECS:
        file = through(tone, *codec[1:])
        with Recording(file) as blocks:
            read = np.concatenate(list(blocks))
        assert len(read) == pytest.approx(len(tone), abs=0.15 * SAMPLE_RATE)
        spectrum = np.abs(np.fft.rfft(read[SAMPLE_RATE // 2 : SAMPLE_RATE]))
        assert 2 * np.argmax(spectrum) == pytest.approx(440, abs=4), codec.name
        if codec.bits is not None:
            assert 8 * len(file) / 2 < 2.5 * codec.bits


def test_experiments_on_speech_read_given_recordings(tmp_path: Path) -> None:
    lines = [{"audio": str(CALL), "text": "one"}, {"audio": str(CALL), "text": "two"}]
    (tmp_path / "calls.jsonl").write_text("\n".join(map(json.dumps, lines)))
    lab = Lab(EngineSettings(), False, results().peaks, recordings=tmp_path / "calls.jsonl")
    found = recordings(lab)
    assert [one.text for one in found] == ["one", "two"]
    [call] = recordings(replace(lab, recordings=None))
    assert call.text.startswith("Hello, is this the helpline?")
    assert np.array_equal(call.samples, found[0].samples)


@long
def test_every_experiment_has_a_finding(tmp_path: Path) -> None:
    made = galley("lab", "--quick", cwd=tmp_path, timeout=1200)
    assert made.returncode == 0, made.stderr
    assert "not measured" not in made.stdout
    kept = msgspec.json.decode((tmp_path / "galley-lab.json").read_bytes(), type=Results)
    assert set(kept.outcomes) == set(EXPERIMENTS)
    for name, outcome in kept.outcomes.items():
        assert outcome.finding is not None, name
        assert len(outcome.finding.figures) == len(EXPERIMENTS[name].claims)
        assert outcome.finding.pictures, name
        assert any(figure.predicted is not None for figure in outcome.finding.figures), name
