"""Progress on a terminal and elsewhere."""

import io

import pytest

from galley.cli.terminal import clear_progress, named_progress, progress


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


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_progress_on_a_terminal_is_a_bar_with_its_name_and_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    with named_progress("recordings", 4) as show:
        show("recordings, 30 s of audio", 0)
        show("recordings, 60 s of audio", 1)
        clear_progress()
        show("recordings, 90 s of audio", 2)
    drawn = [line.replace("\x1b[?25l", "") for line in terminal.getvalue().split("\r")]
    assert [line.split("  [")[0] for line in drawn[1:4]] == [
        "recordings",
        "recordings, 30 s of audio",
        "recordings, 60 s of audio",
    ]
    assert drawn[3].split("]  ")[1].split()[0] == "1/4"
    assert drawn[4] == "\x1b[K"
    assert drawn[5].split("]  ")[1].startswith("2/4")


def test_a_bar_of_unknown_length_has_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    with progress("reading", 0) as shown:
        shown.update(3)
    assert "]  3" in terminal.getvalue()
    assert "3/0" not in terminal.getvalue()
