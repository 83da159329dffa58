"""Writing a benchmark's figures to a machine's results."""

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from benchmarks.overload import FACTORS, Point, figures
from benchmarks.results_file import machine_file, put
from scripts.benchmarks_page import RESULTS, pages, read_results


def results(goodput: float) -> dict[str, Any]:
    rest: dict[str, Any] = {
        "late": 0.1,
        "refused": 0.2,
        "broken": 0,
        "refusal_p50": 0.01,
        "refusal_p99": None,
    }
    times = {"ttft_p50": 0.1, "ttft_p99": 0.2, "lag_p99": 0.002}
    rest |= times | {"goodput": goodput}
    points: list[dict[str, Any]] = [{"factor": f, "offered": f} | rest for f in FACTORS]
    assert Point(**points[0])
    return {"sustainable": 40.0, "deadline_s": 3.0, "points": points}


def test_figures_replace_those_of_the_same_name(tmp_path: Path) -> None:
    newest = sorted(RESULTS.glob("*.json"))[-1]
    file = tmp_path / newest.name
    shutil.copy(newest, file)
    put(file, [])
    assert file.read_bytes() == newest.read_bytes()
    count = len(json.loads(file.read_bytes())["figures"])
    for goodput in (30.0, 31.0):
        written = figures(results(goodput), "python -m benchmarks.overload")
        put(file, written)
        machines = read_results(tmp_path)
        [machine] = machines.values()
        assert len(machine.figures) <= count + len(written)
        by_name = {figure.what: figure for figure in machine.figures}
        assert by_name["Overload: goodput"].measured == (goodput,) * len(FACTORS)
        assert "| Overload: goodput | requests/s | 0.5x, 0.75x" in "".join(pages(machines).values())


def test_a_wrong_results_file_is_reported_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    newest = sorted(RESULTS.glob("*.json"))[-1]
    assert machine_file(str(newest)) == newest
    parser = argparse.ArgumentParser()
    parser.add_argument("--results", type=machine_file)
    for name, content, error in (
        ("none.json", None, "No such file"),
        ("no.json", "{}", "does not describe a machine"),
    ):
        if content is not None:
            (tmp_path / name).write_text(content)
        with pytest.raises(SystemExit):
            parser.parse_args(["--results", str(tmp_path / name)])
        assert error in capsys.readouterr().err
