"""A redacting server: the spoken number appears in no answer, event, log or metric."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from galley.speech.audio import SAMPLE_RATE, Recording
from galley.speech.transcribe import Transcriber
from tests import real
from tests.cli.command import galley
from tests.server.serving import Server, until

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("real-redaction")]

TRANSCRIPTIONS = "/v1/audio/transcriptions"
SPOKEN = (
    "My card number is four five three nine, one four eight eight, zero three four three, six four six "
    "seven. Thank you very much, please call me back."
)
DIGITS = re.compile(r"(\d\W*){6}|\b(four|nine|eight|six|seven)\b", re.IGNORECASE)
"""Six digits in a row, or a word of the number, which occurs nowhere else."""

NUMBERS = re.compile(r'"[a-z_]+":[-\d.e]+|"tokens":\[[\d,]*\]|[\d:,]+ --> [\d:,]+')
"""Fields of JSON that are numbers, and times of captions."""


@pytest.fixture(scope="module")
def call(tmp_path_factory: pytest.TempPathFactory) -> Path:
    espeak = shutil.which("espeak-ng")
    if espeak is None:
        pytest.skip("espeak-ng is not installed (apt install espeak-ng)")
    path = tmp_path_factory.mktemp("call") / "call.wav"
    subprocess.run([espeak, "-v", "en-us", "-s", "140", "-w", path, SPOKEN], check=True)
    return path


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("server") / "log"
    audit = log.with_name("audit.jsonl")
    with Server(real.whisper(), log, threads=1, redact="card", audit_log=audit) as running:
        yield running


def test_no_answer_has_the_number(server: Server, call: Path) -> None:
    forms: list[dict[str, Any]] = [
        {"response_format": "json"},
        {"response_format": "text"},
        {"response_format": "srt"},
        {"response_format": "verbose_json", "timestamp_granularities[]": ["word", "segment"]},
        {"stream": "true"},
        {"redact[]": "name"},
    ]
    with server.client() as client:
        for form in forms:
            answer = client.post(
                TRANSCRIPTIONS, files={"file": ("call.wav", call.read_bytes())}, data=form
            )
            assert answer.status_code == 200, answer.text
            text = NUMBERS.sub("", answer.text)
            assert "[CARD]" in text
            assert "call me back" in text
            assert not DIGITS.search(text), text
        metrics = client.get("/metrics").text
    assert "[CARD]" not in metrics
    assert not re.search(r"4\W*5\W*3\W*9\W*1\W*4\W*8", metrics + server.log)


def test_tokens_that_spell_the_number_are_gone(server: Server, call: Path) -> None:
    with server.client() as client:
        answer = client.post(
            TRANSCRIPTIONS,
            files={"file": ("call.wav", call.read_bytes())},
            data={"response_format": "verbose_json"},
        ).json()
    for segment in answer["segments"]:
        assert ("[CARD]" in segment["text"]) == (segment["tokens"] == [])


def test_the_audit_log_has_what_was_redacted_by_kind_and_no_text(
    server: Server, call: Path
) -> None:
    audit = server.log_path.with_name("audit.jsonl")
    before = audit.read_text().count("\n")
    with server.client() as client:
        answer = client.post(TRANSCRIPTIONS, files={"file": ("call.wav", call.read_bytes())})
    assert answer.status_code == 200
    until(lambda: audit.read_text().count("\n") > before)
    [entry] = [json.loads(line) for line in audit.read_text().splitlines()[before:]]
    assert entry["path"] == TRANSCRIPTIONS
    assert (entry["redact"], entry["redacted"]) == ("card", {"card": 1})
    assert entry["id"] == answer.headers["x-request-id"]
    assert (entry["status"], entry["finish"]) == (200, "stop")
    assert "call me back" not in audit.read_text()
    done = galley("audit", "verify", audit)
    assert done.returncode == 0, done.stderr
    assert f"{before + 1} lines" in done.stdout
    assert galley("serve", real.whisper(), "--audit-log", audit, "--port", "0").returncode == 2


def test_an_unknown_kind_is_named(server: Server, call: Path) -> None:
    with server.client() as client:
        answer = client.post(
            TRANSCRIPTIONS,
            files={"file": ("call.wav", call.read_bytes())},
            data={"redact[]": ["card", "iban"]},
        )
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith("redact")


def test_the_number_is_gone_from_the_audio(call: Path, tmp_path: Path) -> None:
    done = galley(
        "transcribe", call, "--model", real.whisper(), "--threads", "1", "--redact", "card",
        "--redacted-audio", "--output-dir", tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    clean = np.concatenate(list(Recording(tmp_path / "call.redacted.wav")))
    assert np.mean(clean == 0) > 0.3, "of eleven seconds, five are the number"
    with Transcriber(real.whisper(), threads=1, weight_cache=False) as transcriber:
        text = transcriber.transcribe(clean, sample_rate=SAMPLE_RATE).text()
    assert "call me back" in text
    assert not DIGITS.search(text), text


def test_audio_is_refused_without_kinds_and_from_the_standard_input() -> None:
    for arguments, reason in (
        (["x.wav", "--redacted-audio"], "--redacted-audio needs --redact"),
        (["-", "--redacted-audio", "--redact", "card"], "can be read once"),
    ):
        done = galley("transcribe", *arguments)
        assert done.returncode == 2
        assert reason in done.stderr
