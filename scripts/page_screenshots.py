"""Take the screenshots for docs/operations/page.md: the page in Chromium, with 32 streams running.

    python -m scripts.page_screenshots [--seconds 150]

Needs Chromium with its driver and the extra ``dev``.
"""

import argparse
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Final

from selenium.webdriver.common.keys import Keys
from tests.page.browser import Browser
from tests.server.serving import Server

from galley.formats.source import BUNDLED, BUNDLED_SPEECH

ROOT: Final = Path(__file__).parents[1]
IMAGES: Final = ROOT / "docs/images"
CALL: Final = ROOT / "examples/call.opus"
STREAMS: Final = 32
MOST_BYTES: Final = 300_000


def main() -> None:
    """Serve the bundled models, keep 32 streams running, and take the screenshots."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--seconds", type=float, default=150, help="seconds of load before the last screenshot"
    )
    seconds = parser.parse_args().seconds
    models = [f"chat={BUNDLED}", f"speech={BUNDLED_SPEECH}"]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with (
            Server(models, log) as server,
            ThreadPoolExecutor(STREAMS) as pool,
        ):
            browser = Browser(size="1360,860")
            over = Event()
            try:
                look(browser, server, pool, over, seconds)
            finally:
                over.set()
                browser.close()


def look(
    browser: Browser, server: Server, pool: ThreadPoolExecutor, over: Event, seconds: float
) -> None:
    """Take all screenshots."""
    browser.open(server)
    browser.until(browser.find("chat-send").is_enabled)
    time.sleep(8)  # some quiet time, so that the curves start low
    for number in range(STREAMS):
        pool.submit(keep_asking, server, number, over)
    end = time.monotonic() + seconds
    chat(browser)
    browser.show("transcript")
    browser.find("recording").send_keys(str(CALL))
    browser.until(lambda: "done in" in browser.content("#said .receipt"))
    browser.find("timed").click()
    browser.find("recording").send_keys(str(CALL))
    browser.until(lambda: len(browser.all("#said tbody tr")) > 0)
    save(browser, "transcript")
    browser.show("curves")
    time.sleep(max(0.0, end - time.monotonic()))
    save(browser, "curves")
    browser.show("memory")
    time.sleep(2)
    save(browser, "memory")


def chat(browser: Browser) -> None:
    """Show a question and its answer, with an uncertain token under the magnifier."""
    browser.find("chat-input").send_keys("What is a KV cache?", Keys.ENTER)
    browser.until(lambda: "tokens/s" in browser.content(".receipt"))
    browser.find("chat-input").send_keys("What is continuous batching?", Keys.ENTER)
    browser.until(lambda: "tokens/s" in browser.content(".turn:last-child .receipt"))
    browser.run(
        """
        const tokens = [...document.querySelectorAll('.turn:last-child .token')];
        const doubt = token => Number(token.style.getPropertyValue('--doubt'));
        const most = tokens.reduce((one, other) => doubt(other) > doubt(one) ? other : one);
        most.dispatchEvent(new PointerEvent('pointerover', {bubbles: true}));
        """
    )
    save(browser, "chat")


def keep_asking(server: Server, number: int, over: Event) -> None:
    """Run one stream after another."""
    client = server.openai()
    seed = 0
    while not over.is_set():
        seed += 1
        chunks = client.chat.completions.create(
            model="chat",
            messages=[{"role": "user", "content": f"{number}.{seed}: explain batching."}],
            max_tokens=100 + 37 * (number * seed % 11),
            stream=True,
            seed=seed,
            temperature=1,
            extra_body={"ignore_eos": True},
        )
        for _ in chunks:
            if over.is_set():
                return


def save(browser: Browser, name: str) -> None:
    """Write a PNG of the window."""
    file = IMAGES / f"{name}.png"
    browser.driver.save_screenshot(str(file))
    assert file.stat().st_size < MOST_BYTES, f"{file} has {file.stat().st_size} bytes"
    print(file)


if __name__ == "__main__":
    main()
