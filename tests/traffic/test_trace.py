"""Traces in every readable form, and the form that is written."""

import json
from pathlib import Path
from typing import Any

import pytest

from galley.errors import SettingsError
from galley.traffic.trace import as_mooncake, read_trace


def written(path: Path, *lines: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_mooncakes_lines_are_milliseconds_and_blocks_of_512(tmp_path: Path) -> None:
    file = written(
        tmp_path / "trace.jsonl",
        {"timestamp": 27482, "input_length": 655, "output_length": 52, "hash_ids": [46, 47]},
        {"timestamp": 10500, "input_length": 672, "output_length": 26, "hash_ids": [46, 48]},
    )
    first, second = read_trace(file)
    assert (first.due, first.after, first.line.input_length) == (0.0, None, 672)
    assert second.due == pytest.approx(16.982)
    assert second.line.block_size == 512
    lines = [json.loads(line) for line in as_mooncake([first, second], sessions=True)]
    assert [line["timestamp"] for line in lines] == [0, 16982]
    assert [line["hash_ids"] for line in lines] == [[46, 48], [46, 47]]
    assert lines[0].keys() == {"timestamp", "input_length", "output_length", "hash_ids"}


def test_aiperfs_later_turns_add_to_their_session(tmp_path: Path) -> None:
    file = written(
        tmp_path / "trace.jsonl",
        {"session_id": "a", "timestamp": 0, "input_length": 1024, "output_length": 5}
        | {"hash_ids": [1, 2]},
        {"session_id": "b", "timestamp": 100, "input_length": 10, "output_length": 5},
        {"session_id": "a", "delay": 500, "input_length": 512, "output_length": 6}
        | {"hash_ids": [3]},
    )
    turns = read_trace(file)
    [first, later, other] = turns
    assert later.line.hash_ids == [1, 2, 3]
    assert later.line.input_length == 1536
    assert (later.after, later.pause) == (turns.index(first), 0.5)
    assert other.after is None


def test_guidellms_times_are_seconds(tmp_path: Path) -> None:
    file = written(
        tmp_path / "trace.jsonl",
        {"timestamp": 5.0, "input_length": 6, "output_length": 7},
        {"timestamp": 7.5, "input_length": 6, "output_length": 7, "anything": "else"},
    )
    assert [turn.due for turn in read_trace(file)] == [0.0, 2.5]
    assert read_trace(file, "ms")[1].due == pytest.approx(0.0025)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ({"timestamp": 0, "input_length": 0, "output_length": 1}, "input_length"),
        ({"timestamp": 0, "input_length": 1, "output_length": -1}, "output_length"),
        ({"input_length": 1, "output_length": 1}, "timestamp"),
        ({"session_id": "a", "delay": 1, "input_length": 1, "output_length": 1}, "first turn"),
        ({"timestamp": "now", "input_length": 1, "output_length": 1}, "timestamp"),
        ([], "object"),
    ],
)
def test_lines_of_no_trace_are_refused(tmp_path: Path, line: Any, why: str) -> None:
    with pytest.raises(SettingsError, match=why):
        read_trace(written(tmp_path / "trace.jsonl", line))


def test_an_empty_trace_is_refused(tmp_path: Path) -> None:
    (tmp_path / "trace.jsonl").write_text("\n")
    with pytest.raises(SettingsError, match="no line"):
        read_trace(tmp_path / "trace.jsonl")
