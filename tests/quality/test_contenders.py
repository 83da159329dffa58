"""``galley compare``: engines served in turn, a failure that is a row, the loss, and the advice."""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

from galley import QualityRules, TranscribeOptions, Transcriber
from galley.bench.serve.results import Point, Quantiles
from galley.bench.serve.server import started
from galley.cli.main import app
from galley.errors import EngineError, SettingsError
from galley.quality.contenders import Comparison, Contender, Loss, divergence
from galley.quality.contenders_page import advice, notes, page, rows
from galley.settings.engine import EngineSettings
from tests.checkpoints import make_checkpoint
from tests.formats.gguf_files import WIDE, write_gguf
from tests.runtimes.ctranslate2_folders import make_whisper
from tests.speech.recordings import encode, tone
from tests.thorough import long


def compare(*arguments: str) -> str:
    command = [sys.executable, "-m", "galley", "compare", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.xdist_group("compare")
def test_each_engine_is_served_and_a_failure_is_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The servers use none of these: keys would refuse the requests, and a record would grow.
    record = tmp_path / "record"
    (tmp_path / "galley.yaml").write_text(f"record: {record}\nadmin_key: [admin]\n")
    monkeypatch.setenv("GALLEY_API_KEY", "secret")
    monkeypatch.chdir(tmp_path)
    model = make_checkpoint(tmp_path / "tiny", "llama", **WIDE)
    rounded = write_gguf(tmp_path / "rounded.gguf", model, "Q4_0")
    json_file, html_file = tmp_path / "all.json", tmp_path / "all.html"
    output = compare(
        str(model),
        *("--engines", f"native,native={rounded},missing"),
        *("--requests", "4", "--concurrency", "1,2"),
        *("--prompt-tokens", "24", "--output-tokens", "8"),
        *("--json", str(json_file), "--html", str(html_file)),
        *("--", "--max-model-len", "300", "--threads", "1"),
    )
    found = msgspec.json.decode(json_file.read_bytes(), type=Comparison)
    exact, loses, missing = found.contenders
    for one in (exact, loses):
        assert [point.load for point in one.points] == [1, 2]
        assert all(point.completed == 4 for point in one.points)
        assert all(point.output_tokens == 8 for point in one.points)
        assert one.start_s is not None
        assert one.memory_bytes is not None
        assert one.memory_bytes > 2**20
    assert exact.loss is not None
    assert loses.loss is not None
    assert exact.loss.positions == loses.loss.positions >= 8
    assert exact.loss.top1 == 1
    assert exact.loss.kl == pytest.approx(0, abs=1e-6)
    assert loses.loss.top1 < 1
    assert loses.loss.kl is not None
    assert loses.loss.kl > 1e-4
    assert not missing.points
    assert "unknown engine 'missing'" in missing.error
    assert output.splitlines()[-1] == advice(found)
    assert "native=rounded.gguf" in output
    html = html_file.read_text()
    assert "missing failed: cannot start: unknown engine" in html
    assert "<script" not in html
    assert "http://" not in html.replace("http://www.w3.org", "")
    assert html.count("<figure>") == 3
    assert not record.exists()


def test_a_settings_file_among_the_flags_is_that_of_the_servers(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("threads: none\n")
    unmeasured = started(
        "galley-demo", "--config", str(file), quiet=True, settings=EngineSettings()
    )
    with pytest.raises(EngineError, match=r"mine\.yaml.*threads"), unmeasured:
        pass


def test_the_advice_on_speech_weighs_word_errors() -> None:
    exact, lossy, near = (
        contender(name, 1.0, None, wer=wer) for name, wer in (("a", 0.04), ("b", 0.2), ("c", 0.045))
    )
    seconds = {"a": 10.0, "b": 90.0, "c": 30.0}
    timed = [
        msgspec.structs.replace(
            one,
            points=(
                msgspec.structs.replace(
                    one.points[0],
                    audio_seconds_per_s=seconds[one.engine],
                    latency_s=Quantiles(0.5, 0.25, 0.5, 0.5, 0.5),
                ),
            ),
        )
        for one in (exact, lossy, near)
    ]
    found = msgspec.structs.replace(comparison(*timed), speech=True, reference="")
    header, first, *_ = rows(found)
    assert header[3:] == ("latency at 32", "audio s/s at 32", "WER")
    assert first[3:] == ("250 ms", "10.0", "4.0%")
    said = advice(found)
    assert said.startswith(
        "Take c: with 32 requests at a time it transcribes 30 seconds of audio per second, 3 times as many "
        "as a (10), and its word error rate is 4.5%"
    )
    assert said.endswith("b made too many word errors to be considered.")
    assert page(found).count("<figure>") == 2


@long
@pytest.mark.xdist_group("compare")
def test_speech_models_are_compared_by_their_word_errors(tmp_path: Path) -> None:
    """With what native says as the reference, native makes no errors, and a model of other weights does."""
    pytest.importorskip("ctranslate2", reason="extra ctranslate2")
    model = make_whisper(tmp_path / "tiny")
    other = make_whisper(tmp_path / "other", seed=2)
    rules = QualityRules(
        beam_size=1, temperatures=(0.0,), no_speech_threshold=None, log_prob_threshold=None
    )
    options = TranscribeOptions(language="en", speech=None, rules=rules)
    body = {
        "language": "en",
        "vad": "false",
        "beam_size": 1,
        "temperature": 0,
        "no_speech_threshold": 1,
        "log_prob_threshold": -1000,
    }
    manifest, json_file = tmp_path / "said.jsonl", tmp_path / "all.json"
    with Transcriber(model, threads=1) as transcriber, manifest.open("w") as file:
        for number in range(3):
            pitches = np.random.default_rng(number).uniform(100, 7000, 9)
            tones = [tone(1, 16_000, hertz=hertz) for hertz in pitches]
            recording = tmp_path / f"{number}.wav"
            recording.write_bytes(encode("wav", np.concatenate(tones)))
            text = transcriber.transcribe(recording, options).text()
            assert text
            file.write(json.dumps({"audio": recording.name, "text": text}) + "\n")
    output = compare(
        str(model),
        *("--engines", f"native,ctranslate2,native={other}", "--data", str(manifest)),
        *("--body", json.dumps(body)),
        *("--requests", "3", "--concurrency", "1,2", "--json", str(json_file)),
        *("--html", str(tmp_path / "all.html"), "--", "--threads", "1"),
    )
    found = msgspec.json.decode(json_file.read_bytes(), type=Comparison)
    assert found.speech
    native, ctranslate2, lossy = found.contenders
    for one in found.contenders:
        assert not one.error
        assert one.loss is None
        assert one.points[0].audio_seconds_per_s
    assert native.wer == ctranslate2.wer == 0
    assert lossy.wer
    assert lossy.wer > 0.2
    header = output.splitlines()[0]
    assert "WER" in header
    assert "audio s/s at 2" in header
    assert "TTFT" not in header
    assert "native=other made too many word errors" in output.splitlines()[-1]
    assert (tmp_path / "all.html").read_text().count("<figure>") == 2


def test_arguments_are_checked_before_the_work(tmp_path: Path) -> None:
    said = tmp_path / "said.jsonl"
    said.write_text('{"audio": "a.wav", "text": "yes"}')
    for arguments, says in (
        (("--engines", "native,,x"), "--engines is 'native,,x'"),
        (("--engine-options", "native"), "expected ENGINE=JSON"),
        (("--engine-options", "other={}"), "names other, which --engines does not have"),
        (("--concurrency", "a"), "--concurrency is 'a'"),
        (("--json", str(tmp_path / "no/x.json")), "does not exist"),
        (("--data", str(said), "--against", "galley-demo"), "--data has recordings"),
        (
            ("--data", str(said), "--body", '{"response_format": "srt"}'),
            "--body has response_format",
        ),
        (("--data", str(said), "--body", '{"stream": true}'), "--body has stream"),
    ):
        result = CliRunner().invoke(app, ["compare", "galley-demo", *arguments])
        assert isinstance(result.exception, SettingsError), result.output
        assert says in str(result.exception)


def test_the_divergence_is_that_of_merged_distributions() -> None:
    rng = np.random.default_rng(1)
    p, q = rng.dirichlet(np.ones(6)), rng.dirichlet(np.ones(6))
    names = list("abcdef")
    shown, other = names[:4], names[1:5]
    merged_p = np.append(p[1:4], p[0] + p[4] + p[5])
    merged_q = np.append(q[1:4], q[0] + q[4] + q[5])
    expected = float(np.sum(merged_p * np.log(merged_p / merged_q)))
    logs = {name: math.log(p[names.index(name)]) for name in shown}
    others = {name: math.log(q[names.index(name)]) for name in other}
    assert divergence(logs, others) == pytest.approx(expected)
    assert divergence(logs, logs) == pytest.approx(0)


def contender(engine: str, tokens_per_s: float, top1: float | None, **changes: Any) -> Contender:
    figures: dict[str, Any] = {
        "kind": "concurrency",
        "load": 32,
        "requests": 9,
        "completed": 9,
        "output_tokens_per_s": tokens_per_s,
        "errors": {},
        "details": {},
    }
    unset = {field.name: None for field in msgspec.structs.fields(Point)}
    loss = None if top1 is None else Loss(positions=100, top1=top1, kl=None)
    return Contender(
        engine=engine,
        model="m",
        start_s=1.0,
        points=(Point(**{**unset, **figures}),),
        loss=loss,
        **changes,
    )


def comparison(*contenders: Contender) -> Comparison:
    return Comparison(
        galley="0",
        started="now",
        model="m",
        machine="a machine",
        workload={},
        reference="m",
        reference_error="",
        contenders=contenders,
    )


def test_the_advice_weighs_speed_and_loss() -> None:
    slow, fast = contender("slow", 100, 0.99), contender("fast", 250, 0.985)
    said = advice(comparison(slow, fast))
    assert said.startswith(
        "Take fast: with 32 requests at a time it generates 250 tokens/s, 2.5 times as many"
    )
    assert "98.5% of positions" in said
    said = advice(comparison(contender("slow", 12.34, None), contender("fast", 1234, None)))
    assert "generates 1,230 tokens/s, 100 times as many as slow (12.3)" in said
    lossy = contender("lossy", 900, 0.5)
    said = advice(comparison(slow, lossy))
    assert said.startswith("Take slow")
    assert "lossy lost too many" in said
    [point] = fast.points
    broken = msgspec.structs.replace(point, errors={"timeout": 3})
    said = advice(comparison(slow, msgspec.structs.replace(fast, points=(broken,))))
    assert said.startswith("Take slow")
    assert said.endswith("fast did not answer all requests.")
    near = contender("near", 97, None)
    assert "as many as near (97) within 5%" in advice(comparison(slow, near))
    failed = Contender(engine="gone", model="m", error="it <broke>")
    assert advice(comparison(failed)).startswith("None of the engines")
    both = comparison(slow, failed)
    assert rows(both)[2][0] == "gone"
    assert set(rows(both)[2][1:]) == {"-"}
    assert notes(both) == ["gone failed: it <broke>"]
    assert "it &lt;broke&gt;" in page(both)
    assert json.loads(msgspec.json.encode(both))["contenders"][1]["error"] == "it <broke>"
