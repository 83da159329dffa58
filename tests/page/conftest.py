"""The bundled models behind a key, and a browser, which end with the last test of this folder."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import av
import pytest
from av.audio.frame import AudioFrame

from galley.formats.source import BUNDLED, BUNDLED_SPEECH
from tests.server.serving import Server

if TYPE_CHECKING:
    from tests.page.browser import Browser

ROOT = Path(__file__).parents[2]
CALL = ROOT / "examples/call.opus"
KEY = "sk-page"


@pytest.fixture(scope="package")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of both bundled models that requires the key."""
    log = tmp_path_factory.mktemp("page") / "log"
    models = [f"chat={BUNDLED}", f"speech={BUNDLED_SPEECH}"]
    with Server(models, log, threads=1, api_key=KEY) as running:
        yield running


@pytest.fixture(scope="package")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example's call as WAV, the format that Chromium's microphone accepts."""
    path = tmp_path_factory.mktemp("recording") / "call.wav"
    with av.open(str(CALL)) as source, av.open(str(path), "w") as target:
        stream = target.add_stream("pcm_s16le", rate=48_000, layout="mono")
        resampler = av.AudioResampler("s16", "mono", 48_000)
        frames: list[AudioFrame | None] = [*source.decode(audio=0), None]
        for frame in frames:
            for part in resampler.resample(frame):
                target.mux(stream.encode(part))
        target.mux(stream.encode(None))
    return path


@pytest.fixture(scope="package")
def browser(recording: Path) -> Iterator["Browser"]:
    """A Chromium whose microphone plays the call; tests are skipped if it is not installed."""
    browser = pytest.importorskip("tests.page.browser", reason="selenium is not installed")
    if browser.CHROMIUM is None or browser.DRIVER is None:
        pytest.skip("no Chromium: apt-get install chromium chromium-driver")
    running: Browser = browser.Browser(microphone=recording)
    yield running
    running.close()


@pytest.fixture
def signed_in(browser: "Browser", served: Server) -> "Browser":
    """The page, freshly loaded, with the key."""
    browser.open(served)
    browser.run("sessionStorage.setItem('galley-key', arguments[0])", KEY)
    browser.driver.refresh()
    browser.until(browser.find("chat-send").is_enabled)
    return browser
