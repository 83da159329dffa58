"""The chat in Chromium, compared with the openai SDK's result for the same question."""

import math
from pathlib import Path

import httpx
import pytest
from selenium.webdriver.common.keys import Keys

from tests.page.browser import Browser
from tests.page.conftest import KEY
from tests.server.serving import Server, until
from tests.tools.checkpoint import make_calling

pytestmark = pytest.mark.xdist_group("page")

QUESTION = "What is a KV cache?"


def ask(browser: Browser, text: str) -> None:
    browser.until(browser.find("chat-send").is_enabled)
    browser.find("chat-input").send_keys(text, Keys.ENTER)


def answered(browser: Browser) -> None:
    browser.until(lambda: browser.find("chat-send").is_displayed())


def rows(browser: Browser) -> list[list[str]]:
    """Return position, token, probability and time of each token in the table."""
    script = """
        const rows = [...document.querySelectorAll('#token-rows tr')];
        return rows.map(row => [...row.cells].map(cell => cell.textContent));
    """
    found: list[list[str]] = browser.run(script)
    return found


def test_each_token_has_its_probability_and_its_time(signed_in: Browser, served: Server) -> None:
    signed_in.find("chat-temperature").send_keys("0")
    ask(signed_in, QUESTION)
    signed_in.until(lambda: "tokens/s" in signed_in.content(".receipt"))
    answer = served.openai(KEY).chat.completions.create(
        model="chat",
        messages=[{"role": "user", "content": QUESTION}],
        temperature=0,
        logprobs=True,
        top_logprobs=5,
    )
    choice, usage = answer.choices[0], answer.usage
    assert choice.logprobs
    assert choice.logprobs.content
    assert usage
    assert signed_in.content(".tokens") == choice.message.content
    shown = rows(signed_in)
    assert len(shown) == len(choice.logprobs.content)
    for (_, _, probability, time), entry in zip(shown, choice.logprobs.content, strict=True):
        assert float(probability.rstrip("%")) == pytest.approx(
            100 * math.exp(entry.logprob), abs=0.06
        )
        assert time.endswith(("ms", " s"))
    assert f"{usage.completion_tokens} tokens" in signed_in.content(".receipt")
    assert f"{usage.prompt_tokens} prompt tokens" in signed_in.content(".receipt")


def test_the_arrow_keys_select_a_token(signed_in: Browser) -> None:
    ask(signed_in, QUESTION)
    answered(signed_in)
    tokens = signed_in.find("log").find_element("css selector", ".tokens")
    tokens.send_keys(Keys.HOME)
    assert "token 1" in signed_in.text("glass")
    tokens.send_keys(Keys.ARROW_RIGHT)
    assert "token 2" in signed_in.text("glass")
    assert len(signed_in.all("#glass .others li")) == 5
    assert signed_in.find("glass").get_attribute("aria-live") == "polite"


def test_stop_ends_the_answer_on_the_server_too(signed_in: Browser, served: Server) -> None:
    signed_in.run("document.getElementById('chat-max-tokens').value = ''")
    # A text that does not end by itself, whatever is drawn.
    signed_in.run(
        """
        const plain = window.fetch;
        window.fetch = (path, options) => {
            if (!options || !options.body) return plain(path, options);
            window.fetch = plain;
            const body = {...JSON.parse(options.body), ignore_eos: true};
            return plain(path, {...options, body: JSON.stringify(body)});
        };
        """
    )
    signed_in.run(
        """
        const rows = document.getElementById('token-rows');
        new MutationObserver((_, observer) => {
            if (rows.children.length < 3) return;
            observer.disconnect();
            document.getElementById('chat-stop').click();
        }).observe(rows, {childList: true});
        """
    )
    ask(signed_in, "Tell me a story. " * 20)
    signed_in.until(lambda: rows(signed_in))
    answered(signed_in)
    assert signed_in.content(".receipt").startswith("stopped")
    until(lambda: running(served) == 0)
    count = len(rows(signed_in))
    ask(signed_in, QUESTION)
    answered(signed_in)
    assert len(signed_in.all(".turn.assistant")) == 2
    assert count >= 3


def running(served: Server) -> float:
    headers = {"Authorization": f"Bearer {KEY}"}
    text = httpx.get(f"{served.url}/metrics", headers=headers).text
    return sum(
        float(line.split()[-1])
        for line in text.splitlines()
        if line.startswith("galley_requests_running{")
    )


def test_thinking_stands_apart_from_the_answer(browser: Browser, tmp_path: Path) -> None:
    folder = make_calling(tmp_path / "thinking")
    template = folder / "chat_template.jinja"
    condition = "enable_thinking is defined and enable_thinking %}"
    template.write_text(template.read_text().replace(condition, "true %}"))
    with Server(folder, tmp_path / "log", threads=1, kv_cache_tokens=2048) as server:
        browser.open(server)
        browser.until(browser.find("chat-send").is_enabled)
        browser.find("chat-temperature").send_keys("0")
        browser.run("document.getElementById('chat-max-tokens').value = '12'")
        ask(browser, QUESTION)
        browser.until(lambda: "of thinking" in browser.content(".receipt"))
        answer = httpx.post(
            f"{server.url}/v1/chat/completions",
            json={"messages": [{"role": "user", "content": QUESTION}]}
            | {"temperature": 0, "max_tokens": 12},
        ).json()
    message = answer["choices"][0]["message"]
    assert message["reasoning_content"]
    assert browser.content(".thinking .tokens") == message["reasoning_content"]
    assert browser.content(".turn.assistant > .tokens") == (message["content"] or "")
    thinking = browser.all(".thinking")[0]
    assert thinking.get_attribute("open")
    browser.all(".thinking summary")[0].send_keys(Keys.ENTER)
    assert not thinking.get_attribute("open")
    # The page asks its server, which has ended, for metrics every second, and complains.
    browser.driver.get("about:blank")
    browser.complaints()


def test_a_refusal_shows_the_servers_message(signed_in: Browser) -> None:
    signed_in.find("chat-temperature").send_keys("-1")
    ask(signed_in, QUESTION)
    signed_in.until(lambda: signed_in.all("#log .error"))
    assert "temperature" in signed_in.content("#log .error")
    assert all(" 400 " in complaint for complaint in signed_in.complaints())
    assert signed_in.find("chat-send").is_displayed()


def test_markup_in_a_message_stays_text(signed_in: Browser) -> None:
    ask(signed_in, "<b id=injected>bold</b>")
    answered(signed_in)
    assert "<b id=injected>" in signed_in.content(".turn.user p")
    assert not signed_in.all("#injected")
