"""Curves and memory in Chromium while 32 streams run, and the page's parser of Prometheus' format."""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import httpx
import pytest
from openai import OpenAI
from prometheus_client.parser import text_string_to_metric_families

from tests.page.browser import Browser
from tests.page.conftest import KEY
from tests.server.serving import Server

pytestmark = pytest.mark.xdist_group("page")

STREAMS = 32


def keep_streaming(client: OpenAI, number: int, over: Event) -> None:
    while not over.is_set():
        chunks = client.chat.completions.create(
            model="chat",
            messages=[{"role": "user", "content": f"{number}. Tell me about batching."}],
            max_tokens=300,
            stream=True,
            temperature=1,
            extra_body={"ignore_eos": True},
        )
        for _ in chunks:
            if over.is_set():
                break


@pytest.fixture
def streams(signed_in: Browser, served: Server) -> Iterator[None]:
    over = Event()
    with ThreadPoolExecutor(STREAMS) as pool:
        running = [
            pool.submit(keep_streaming, served.openai(KEY), number, over)
            for number in range(STREAMS)
        ]
        yield
        over.set()
        for future in running:
            future.result()


def legend(browser: Browser, title: str) -> dict[str, str]:
    """Return name of each series of a curve -> its value now."""
    script = """
        const title = plot => plot.querySelector('h3').textContent;
        const plot = [...document.querySelectorAll('.plot')].find(p => title(p) === arguments[0]);
        const series = [...plot.querySelectorAll('.legend span')];
        return series.map(s => [s.childNodes[1].textContent.trim(), s.lastChild.textContent]);
    """
    return dict(browser.run(script, title))


def value(text: str) -> float:
    """Return the first number in a text; 0 where nothing is known yet."""
    found = re.match(r"[\d,.]+", text)
    return float(found[0].replace(",", "")) if found else 0.0


@pytest.mark.usefixtures("streams")
def test_curves_follow_32_streams(signed_in: Browser) -> None:
    signed_in.show("curves")
    signed_in.until(lambda: value(legend(signed_in, "Requests")["running"]) >= 16)
    signed_in.until(lambda: value(legend(signed_in, "Tokens per second")["generated"]) > 10)
    signed_in.until(lambda: value(legend(signed_in, "KV cache")["in use"]) > 0)
    signed_in.until(lambda: value(legend(signed_in, "Time to first token")["P95"]) > 0)
    signed_in.until(lambda: value(legend(signed_in, "Time between tokens")["P50"]) > 0)
    assert len(signed_in.all(".plot path.line")) >= 6
    label = signed_in.all(".plot svg")[0].get_attribute("aria-label")
    assert label
    assert re.search(r"running: \d+ to \d+", label)
    signed_in.show("chat")
    signed_in.until(signed_in.find("chat-send").is_enabled)


def test_memory_and_start_are_those_of_the_metrics(signed_in: Browser, served: Server) -> None:
    samples = served.metrics("chat", Authorization=f"Bearer {KEY}")
    signed_in.show("memory")
    signed_in.until(lambda: len(signed_in.all("#ledger .card")) >= 5)
    text = signed_in.text("ledger")
    assert "chat: KV cache" in text
    assert "chat: start" in text
    assert f"{samples['galley_memory_limit_bytes'] / 2**30:.3g} GiB" in text
    ready = samples["galley_startup_phase_seconds{phase=ready}"]
    shown = re.search(r"ready after ([\d.]+) (ms|s)", text.partition("chat: start")[2])
    assert shown
    assert float(shown[1]) / (1000 if shown[2] == "ms" else 1) == pytest.approx(ready, rel=0.02)
    blocks = sum(count for name, count in samples.items() if name.startswith("galley_kv_blocks{"))
    # In one call: the page redraws the cards every second.
    cells = signed_in.run(
        """
        return [...document.querySelectorAll("#ledger .card")]
            .filter(card => card.innerText.startsWith("chat: KV cache"))
            .flatMap(card => [...card.querySelectorAll("tbody tr td:first-of-type")])
            .map(cell => cell.innerText);
        """
    )
    assert sum(map(value, cells)) == blocks


def test_the_page_reads_metrics_as_prometheus_client_does(
    signed_in: Browser, served: Server
) -> None:
    text = httpx.get(f"{served.url}/metrics", headers={"Authorization": f"Bearer {KEY}"}).text
    text += 'odd{one="a\\"b\\\\c\\nd",two="}, {"} +Inf\nbare 1e-3 1700000000000\n'
    found: list[Any] = signed_in.run_async(
        """
        const {parse} = await import("/page/prometheus.js");
        return [...parse(args[0])].flatMap(([name, samples]) =>
            samples.map(({labels, value}) => [name, labels, String(value)]));
        """,
        text,
    )
    expected = [
        (sample.name, dict(sample.labels), sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    ]
    read = [
        (name, labels, float(value.replace("Infinity", "inf"))) for name, labels, value in found
    ]
    assert sorted(read, key=str) == sorted(expected, key=str)
    assert len(read) > 50


@pytest.mark.parametrize(
    ("share", "expected"),
    # Buckets up to 0.1, 0.5, 1 and infinity with 10, 20, 10 and 0 samples.
    [(0.25, 0.1), (0.5, 0.3), (0.75, 0.5), (0.875, 0.75)],
)
def test_quantiles_are_those_of_histogram_quantile(
    signed_in: Browser, share: float, expected: float
) -> None:
    script = """
        const {quantile} = await import("/page/prometheus.js");
        const earlier = [[0.1, 5], [0.5, 5], [1, 5], [Infinity, 5]];
        const later = [[0.1, 15], [0.5, 35], [1, 45], [Infinity, 45]];
        return [quantile(args[0], earlier, later), quantile(args[0], later, later)];
    """
    assert signed_in.run_async(script, share) == [pytest.approx(expected), None]
