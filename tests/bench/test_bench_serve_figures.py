"""Statistics, arrivals, lengths and pages of ``galley bench serve``, against known numbers."""

import random
import statistics
from array import array
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import numpy as np
import pytest
from scipy import stats

from galley.bench.serve.arrivals import poisson
from galley.bench.serve.chart import Line, chart, ticks
from galley.bench.serve.compare import _milliseconds, compared
from galley.bench.serve.lengths import Lengths
from galley.bench.serve.load import Run
from galley.bench.serve.measure import quantiles_of, summarize, timeline
from galley.bench.serve.objective import parse_objective
from galley.bench.serve.page import page
from galley.bench.serve.results import Point, Report, read_report
from galley.bench.serve.samples import Sample
from galley.bench.serve.words import Words
from galley.bench.serve.workload import Workload, read_lines
from galley.errors import SettingsError


def sample(
    started: float, chunks: list[float], ended: float, tokens: int, error: str = ""
) -> Sample:
    made = Sample(started - 0.001, started, ended, array("d", chunks), error=error, counted=True)
    made.prompt_tokens, made.output_tokens = 10, tokens
    return made


RUN = Run(
    [
        sample(10.0, [10.5, 10.7, 11.1], 11.2, 4),
        sample(10.0, [11.0, 12.0], 12.0, 2),
        sample(10.5, [10.6], 14.0, 1, error="connection lost"),
    ],
    array("d", [0.0, 0.002]),
)


def point(load: float = 2.0) -> Point:
    objective = {"ttft": 0.6, "tpot": 0.5}
    return summarize(RUN, kind="rate", load=load, objective=objective, price_per_hour=3.6)


def report(*loads: float, **changes: object) -> Report:
    given: dict[str, object] = {
        "galley": "1",
        "started": "2025-01-01T00:00:00+00:00",
        "target": "http://host",
        "model": "<m&m>",
        "workload": {"endpoint": "chat"},
        "objective": {"ttft": 0.6},
        "price_per_hour": 3.6,
        "client": "a cpu",
        "points": [point(load) for load in loads],
    }
    return Report(**{**given, **changes})  # type: ignore[arg-type]


def test_quantiles_are_those_of_the_standard_library() -> None:
    values = [random.Random(3).lognormvariate(0, 1) for _ in range(501)]
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    found = quantiles_of(values)
    assert found is not None
    assert (found.p50, found.p95, found.p99) == pytest.approx((cuts[49], cuts[94], cuts[98]))
    assert (found.mean, found.max) == pytest.approx((statistics.fmean(values), max(values)))
    assert quantiles_of([]) is None


@pytest.mark.parametrize(
    ("count", "shown"),
    [(10, ["p50", "max"]), (20, ["p50", "p95", "max"]), (100, ["p50", "p95", "p99", "max"])],
)
def test_a_quantile_of_too_few_requests_is_not_shown(count: int, shown: list[str]) -> None:
    found = quantiles_of([float(i) for i in range(count)])
    assert found is not None
    assert [part for part in ("p50", "p95", "p99", "max") if found.shown(part) is not None] == shown
    assert _milliseconds(found).split().count("-") == 4 - len(shown)


def test_the_figures_of_a_run_worked_out_by_hand() -> None:
    made = point()
    assert (made.requests, made.completed, made.errors) == (3, 2, {"connection lost": 1})
    assert made.duration_s == pytest.approx(4.0)
    assert made.ttft_s is not None
    assert made.ttft_s.mean == pytest.approx((0.5 + 1.0) / 2)
    assert made.tpot_s is not None
    assert made.tpot_s.max == pytest.approx(1.0)
    assert made.tpot_s.mean == pytest.approx((0.6 / 3 + 1.0) / 2)
    assert made.inter_token_s is not None
    assert made.inter_token_s.p50 == pytest.approx(0.4)
    assert made.latency_s is not None
    assert made.latency_s.max == pytest.approx(2.0)
    assert made.output_tokens_per_s == pytest.approx(6 / 4)
    assert made.total_tokens_per_s == pytest.approx(26 / 4)
    # The first meets the objective, the second does not, the third failed.
    assert made.goodput_share == pytest.approx(1 / 3)
    assert made.goodput_per_s == pytest.approx(1 / 4)
    # 0.1 cents per second
    assert made.cost_per_million_output == pytest.approx(0.001 / 1.5 * 1e6)
    assert made.cost_per_million == pytest.approx(0.001 / 6.5 * 1e6)
    assert made.lag_s.max == pytest.approx(0.001)
    assert made.loop_delay_s.max == pytest.approx(0.002)


def test_a_timeline_adds_up_to_its_run() -> None:
    line = timeline(RUN.samples, 7)
    assert sum(line.running) * line.slice_s == pytest.approx(1.2 + 2.0 + 3.5)
    assert sum(line.output_tokens_per_s) * line.slice_s == pytest.approx(4 + 2 + 1)
    assert line.running[0] == pytest.approx(2 + (4 / 7 - 0.5) / (4 / 7))
    assert line.ttft_s[-1] is None


def test_arrivals_are_poisson() -> None:
    times = poisson(5.0, seed=1, requests=4000)
    gaps = np.diff(times)
    assert times[0] == 0
    assert gaps.mean() == pytest.approx(1 / 5, rel=0.05)
    assert stats.kstest(gaps, "expon", args=(0, 1 / 5)).pvalue > 0.01
    assert times == poisson(5.0, seed=1, requests=4000) != poisson(5.0, seed=2, requests=4000)
    timed = poisson(5.0, seed=1, seconds=100)
    assert timed == times[: len(timed)]
    assert max(timed) < 100 <= times[len(timed)]


@pytest.mark.parametrize(
    ("text", "mean", "least", "most"),
    [
        ("512", 512, 512, 512),
        ("64-256", 160, 64, 256),
        ("normal:200,20", 200, 1, 400),
        ("lognormal:100,0.5", 100 * np.exp(0.125), 1, 10_000),
    ],
)
def test_lengths_are_of_their_distribution(text: str, mean: float, least: int, most: int) -> None:
    lengths, rng = Lengths.parse(text, "--x"), np.random.default_rng(0)
    drawn = [lengths.draw(rng) for _ in range(4000)]
    assert np.mean(drawn) == pytest.approx(mean, rel=0.03)
    assert least <= min(drawn)
    assert max(drawn) <= most
    if text == "64-256":
        assert (min(drawn), max(drawn)) == (64, 256)


@pytest.mark.parametrize("text", ["", "0", "-3", "9-3", "normal:5", "zipf:1,2", "1.5"])
def test_a_wrong_length_is_reported(text: str) -> None:
    with pytest.raises(SettingsError, match="--prompt-tokens"):
        Lengths.parse(text, "--prompt-tokens")


def test_an_objective_has_units() -> None:
    assert parse_objective("ttft=1s, tpot=50ms") == {"ttft": 1.0, "tpot": 0.05}
    assert parse_objective("") == {}
    for wrong in ("ttft=1", "itl=1s", "ttft"):
        with pytest.raises(SettingsError, match="--slo"):
            parse_objective(wrong)


def workload(**changes: object) -> Workload:
    lengths = {"prompt_tokens": Lengths("fixed", 100), "output_tokens": Lengths("fixed", 9)}
    return Workload(**{**lengths, **changes})  # type: ignore[arg-type]


def test_prompts_share_what_they_should_and_no_more() -> None:
    made = workload(endpoint="completions", shared_prefix=0.4, body={"temperature": 0.5})
    requests = made.requests("m", Words(), run=0)
    bodies = [msgspec.json.decode(next(requests).content) for _ in range(20)]
    texts = [body["prompt"].split() for body in bodies]
    assert {len(words) for words in texts} == {100}
    # The first word and 40 % of the other 99.
    assert len({tuple(words[:41]) for words in texts}) == 1
    assert len({tuple(words[41:50]) for words in texts}) == 20
    assert bodies[0]["max_tokens"] == 9
    assert bodies[0]["temperature"] == 0.5
    again, other = made.requests("m", Words(), run=0), made.requests("m", Words(), run=1)
    assert msgspec.json.decode(next(again).content) == bodies[0]
    assert msgspec.json.decode(next(other).content) != bodies[0]


def test_lines_are_read_and_wrong_ones_reported(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text('{"timestamp": 5, "prompt": "hi"}\n\n{"timestamp": 6.5, "prompt_tokens": 3}\n')
    lines = read_lines(file, trace=True)
    assert [line.timestamp for line in lines] == [0, 1.5]
    requests = workload(lines=lines).requests("m", Words(), run=0)
    said = [msgspec.json.decode(next(requests).content)["messages"][0]["content"] for _ in range(3)]
    assert said[0] == said[2] == "hi"
    assert len(said[1].split()) == 3
    for text, match in (
        ('{"timestamp": 2}\n{"timestamp": 1}', "line 2: timestamp is less"),
        ('{"prompt": "hi"}', "line 1: a trace needs a timestamp"),
        ('{"timestamp": 1, "promt": "hi"}', "line 1: .*promt"),
        ('{"timestamp": 1, "output_tokens": 0}', "line 1: lengths"),
        ("", "the file is empty"),
    ):
        file.write_text(text)
        with pytest.raises(SettingsError, match=match):
            read_lines(file, trace=True)


@pytest.mark.parametrize("most", [3e-4, 0.7, 1, 7, 10, 99, 1234])
def test_ticks_are_round_and_reach_the_end(most: float) -> None:
    found = ticks(most)
    assert found[0] == 0
    assert found[-2] < most <= found[-1]
    assert 3 < len(found) <= 9
    assert all(len(f"{tick:g}") < 8 for tick in found)


def test_a_chart_is_xml_and_interrupted_where_nothing_is() -> None:
    line = Line("a < b", [1, 2, 3, 4], [1.0, None, 2.0, 3.0], dots=True)
    figure = ElementTree.fromstring(chart("t", "x", "y", [line]))
    [path] = figure.findall("./svg/g/path")
    assert path.attrib["d"].count("M") == 2
    assert len(figure.findall("./svg/g/circle")) == 3
    assert chart("t", "x", "y", [Line("none", [1], [None])]) == ""


class Page(HTMLParser):
    """The text of a page; it fails if the page loads anything from elsewhere."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.text = ""
        self.figures = 0
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in {"script", "link", "img", "iframe"}
        assert not {"src", "href"} & {name for name, _ in attrs}
        self.figures += tag == "figure"

    def handle_data(self, data: str) -> None:
        self.text += data + "\n"


def test_the_page_stands_alone_and_has_all_curves(tmp_path: Path) -> None:
    one, two = report(1, 2), report(2, 4)
    alone = Page(page([("before", one)]))
    # 3 by throughput, 2 of cost, 4 distributions, 3 timelines of each run
    assert alone.figures == 3 + 2 + 4 + 3 * 2
    assert "<m&m>" in alone.text
    assert "connection lost" in alone.text
    assert Page(page([("before", one), ("after", two)])).figures == 3 + 2 + 4 + 3 * 4
    assert "url(" not in page([("before", one)])


def test_reports_come_back_and_are_compared_by_load(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    before = report(1, 2)
    file.write_bytes(msgspec.json.encode(before))
    assert read_report(file) == before
    rows = compared(before, report(2, 4))
    assert {row[0] for row in rows} == {"2/s"}
    assert {row[4] for row in rows} == {"1.000"}
    with pytest.raises(SettingsError, match="no load in common: 1/s; 2/s in one, 8/s in"):
        compared(before, report(8))
    file.write_text("{}")
    with pytest.raises(SettingsError, match="not a report of galley bench serve"):
        read_report(file)
    file.write_bytes(msgspec.json.encode(report(1, version=99)))
    with pytest.raises(SettingsError, match="version 99"):
        read_report(file)
