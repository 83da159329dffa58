"""Progress output when stderr is not a terminal."""

import pytest

from galley.cli.terminal import progress


def test_progress_is_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    with progress("answering", 8, done=2) as shown:
        for seconds in (4, 5, 2, 3, 8):
            now += seconds
            shown.update(1)
    printed = capsys.readouterr().err
    assert printed == "answering: 5 of 8 (62%)\nanswering: 7 of 8 (88%)\n"


def test_progress_of_unknown_length_is_a_count(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    with progress("reading", 0) as shown:
        shown.update(3)
        now = 11.0
        shown.update(4)
    assert capsys.readouterr().err == "reading: 7\n"
