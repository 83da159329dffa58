"""The results file of a batch survives being killed at any byte."""

import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from galley.cli.batch_files import Results, read_lines, result_id, scan
from galley.errors import RequestError


def write(path: Path, *lines: str) -> Path:
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


def request(custom_id: str) -> str:
    return json.dumps({"custom_id": custom_id})


def result(number: int, custom_id: str | None) -> dict[str, Any]:
    response = {"status_code": 200, "body": "ünï\u2028"}
    return {"id": result_id(number), "custom_id": custom_id, "response": response, "error": None}


def failure(number: int, custom_id: str) -> dict[str, Any]:
    response = {"status_code": 404, "body": {"error": {"message": "no model"}}}
    return {**result(number, custom_id), "response": response}


def test_scan_gives_each_line_an_id(tmp_path: Path) -> None:
    path = write(tmp_path / "in", request("a"), "", "no JSON", '{"custom_id": 7}', "[]", "  ")
    assert scan(path) == {
        "batch_req_1": "a",
        "batch_req_3": None,
        "batch_req_4": None,
        "batch_req_5": None,
    }
    assert [number for number, _ in read_lines(path)] == [1, 3, 4, 5]


def test_a_last_line_without_newline_is_a_line(tmp_path: Path) -> None:
    path = tmp_path / "in"
    path.write_bytes(request("a").encode())
    assert scan(path) == {"batch_req_1": "a"}


def test_hostile_lines_have_no_id(tmp_path: Path) -> None:
    path = tmp_path / "in"
    path.write_bytes(b"[" * 100_000 + b"\n\xff\xfe\n" + b"9" * 10_000 + b"\n")
    path.write_bytes(path.read_bytes() + b'{"custom_id": "\\ud800"}')
    assert list(scan(path).values()) == [None, None, None, None]


def test_duplicate_custom_ids_are_refused_with_their_lines(tmp_path: Path) -> None:
    path = write(tmp_path / "in", request("a"), request("b"), "", request("a"))
    with pytest.raises(RequestError, match=r"lines 1 and 4 have the same custom_id 'a'"):
        scan(path)


def test_files_that_cannot_be_opened_are_named(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"cannot read .*nowhere: No such file"):
        scan(tmp_path / "nowhere")
    with pytest.raises(RequestError, match=r"cannot write .*nowhere/out: No such file"):
        Results(tmp_path / "nowhere" / "out", {})


WANTED = {"batch_req_1": "a", "batch_req_2": None, "batch_req_3": "c"}


@given(
    kept=st.lists(st.sampled_from([(1, "a"), (2, None), (3, "c")]), unique=True), cut=st.integers(0)
)
def test_a_kill_at_any_byte_loses_nothing_that_was_whole(
    tmp_path_factory: pytest.TempPathFactory, kept: list[tuple[int, str | None]], cut: int
) -> None:
    path = tmp_path_factory.mktemp("batch") / "out"
    with Results(path, WANTED) as results:
        for number, custom_id in kept:
            results.append(result(number, custom_id))
    whole = path.read_bytes()
    torn = whole[: len(whole) - cut % (len(whole) + 1)]
    path.write_bytes(torn)
    lines = torn.count(b"\n")
    assert len(whole.decode().splitlines()) == len(kept)
    with Results(path, WANTED) as results:
        assert results.done == {result_id(number) for number, _ in kept[:lines]}
        for number, custom_id in kept[lines:]:
            results.append(result(number, custom_id))
    assert path.read_bytes() == whole


def test_only_one_process_writes(tmp_path: Path) -> None:
    with (
        Results(tmp_path / "out", WANTED),
        pytest.raises(RequestError, match="another process is writing this file"),
    ):
        Results(tmp_path / "out", WANTED)
    with Results(tmp_path / "out", WANTED) as again:
        assert again.done == set()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("precious notes", "contains a line that is not a batch result"),
        ("[1]", "contains a line that is not a batch result"),
        ('{"custom_id": "a"}', "contains a line that is not a batch result"),
        ('{"id": "batch_req_1", "custom_id": "a"}', "contains a line that is not a batch result"),
        (json.dumps(result(1, "z")), "the result of 'z', which is not in the file"),
        (json.dumps(result(9, None)), "the result of 'batch_req_9'"),
        (json.dumps(result(1, None)), "the result of 'batch_req_1'"),
    ],
)
def test_other_files_are_left_alone(tmp_path: Path, line: str, message: str) -> None:
    path = write(tmp_path / "out", line)
    with pytest.raises(RequestError, match=message):
        Results(path, WANTED)
    assert path.read_text(encoding="utf-8") == line + "\n"


def test_a_torn_line_of_another_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("precious notes without an end", encoding="utf-8")
    with pytest.raises(RequestError, match="not a batch result"):
        Results(path, WANTED)
    assert path.read_text(encoding="utf-8") == "precious notes without an end"


def test_lines_may_move_between_runs(tmp_path: Path) -> None:
    path = write(tmp_path / "out", json.dumps(result(1, "c")))
    with Results(path, WANTED) as results:
        assert results.done == {"batch_req_3"}


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Simulate a full disk: no file grows beyond ``size`` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_leaves_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "out"
    wanted: dict[str, str | None] = {result_id(i): str(i) for i in (1, 2, 3)}
    with Results(path, wanted) as results:
        results.append(result(1, "1"))
        whole = path.read_bytes()
        with (
            largest_file(len(whole) + 10),
            pytest.raises(RequestError, match=r"cannot write .*out: File too large"),
        ):
            results.append(result(2, "2"))
        assert path.read_bytes() == whole
        results.append(result(3, "3"))
    with Results(path, wanted) as results:
        assert results.done == {result_id(1), result_id(3)}


def test_failed_lines_are_counted_and_removed(tmp_path: Path) -> None:
    invalid = {**failure(2, ""), "custom_id": None, "response": None, "error": {"message": "bad"}}
    lines = [json.dumps(line) for line in (failure(1, "a"), invalid, result(3, "c"))]
    path = write(tmp_path / "out", *lines)
    with Results(path, WANTED) as results:
        assert results.done == set(WANTED)
        assert results.failures == {"404: no model": 1, "bad": 1}
    assert path.read_text(encoding="utf-8").splitlines() == lines
    link = tmp_path / "link"
    link.symlink_to(path)
    with Results(link, WANTED, retry_failed=True) as results:
        assert results.done == {"batch_req_3"}
        assert not results.failures
        assert path.read_text(encoding="utf-8").splitlines() == lines[2:]
        with pytest.raises(RequestError, match="another process is writing this file"):
            Results(path, WANTED)
        results.append(failure(1, "a"))
        assert results.failures == {"404: no model": 1}
    assert link.is_symlink()
    assert sorted(tmp_path.iterdir()) == [link, path]
    assert path.read_text(encoding="utf-8").splitlines() == [lines[2], lines[0]]


def test_a_full_disk_keeps_failures_that_cannot_be_removed(tmp_path: Path) -> None:
    path = write(tmp_path / "out", *map(json.dumps, (failure(1, "a"), result(3, "c"))))
    before = path.read_bytes()
    with largest_file(10), pytest.raises(RequestError, match="cannot write"):
        Results(path, WANTED, retry_failed=True)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
