"""Recordings and the microphone in Chromium, compared with the openai SDK's result for the same call."""

import difflib
import json
from pathlib import Path

import numpy as np
import pytest
from selenium.webdriver.common.keys import Keys
from websockets import InvalidStatus, Subprotocol
from websockets.sync.client import connect

from tests.page.browser import Browser
from tests.page.conftest import CALL, KEY
from tests.server.serving import Server

pytestmark = pytest.mark.xdist_group("page")


@pytest.fixture(scope="module")
def truth(served: Server) -> str:
    with CALL.open("rb") as file:
        return served.openai(KEY).audio.transcriptions.create(model="speech", file=file).text


def test_a_recording(signed_in: Browser, truth: str) -> None:
    signed_in.show("transcript")
    signed_in.until(signed_in.find("recording").is_enabled)
    signed_in.find("recording").send_keys(str(CALL))
    signed_in.until(lambda: "done in" in signed_in.content("#said .receipt"))
    assert signed_in.content(".said-text") == truth


def test_a_recording_with_times(signed_in: Browser, truth: str) -> None:
    signed_in.show("transcript")
    signed_in.until(signed_in.find("recording").is_enabled)
    signed_in.find("timed").click()
    signed_in.find("recording").send_keys(str(CALL))
    signed_in.until(lambda: "done in" in signed_in.content("#said .receipt"))
    cells = [cell.text for cell in signed_in.all("#said tbody td:last-child")]
    assert " ".join(cells).split() == truth.split()
    times = signed_in.all("#said tbody td.figure")
    assert times
    assert {cell.value_of_css_property("white-space") for cell in times} == {"nowrap"}


def test_a_file_that_is_no_recording(signed_in: Browser, tmp_path: Path) -> None:
    file = tmp_path / "notes.mp3"
    file.write_text("no sound at all")
    signed_in.show("transcript")
    signed_in.until(signed_in.find("recording").is_enabled)
    signed_in.find("recording").send_keys(str(file))
    signed_in.until(lambda: signed_in.all("#said .error"))
    assert signed_in.content("#said .error")


def test_the_microphone_is_read_while_one_speaks(signed_in: Browser, truth: str) -> None:
    signed_in.show("transcript")
    signed_in.until(signed_in.find("speak").is_enabled)
    signed_in.logged("performance")
    signed_in.find("speak").click()
    signed_in.until(lambda: len(signed_in.content(".said-text").split()) >= 8)
    assert signed_in.find("speak").text == "Stop"
    signed_in.find("speak").send_keys(Keys.ENTER)
    signed_in.until(lambda: signed_in.find("speak").text == "Speak")
    assert not signed_in.all("#said .error")
    shown = signed_in.content(".said-text").split()
    assert shown == " ".join(transcripts_received(signed_in)).split()
    # Chromium starts somewhere in the call, and repeats it after its end. A busy machine loses parts of the
    # sound, more of them the longer one speaks.
    heard = [word.lower() for word in shown[:8]]
    same = difflib.SequenceMatcher(None, heard, 2 * truth.lower().split(), autojunk=False)
    assert sum(block.size for block in same.get_matching_blocks()) >= 0.6 * len(heard)


def transcripts_received(browser: Browser) -> list[str]:
    """Return the texts of the turns completed in /v1/realtime since Chromium's log was last read."""
    messages = [json.loads(entry["message"])["message"] for entry in browser.logged("performance")]
    events = [
        json.loads(message["params"]["response"]["payloadData"])
        for message in messages
        if message["method"] == "Network.webSocketFrameReceived"
    ]
    return [event["transcript"] for event in events if event["type"].endswith(".completed")]


@pytest.mark.parametrize(("hertz", "passes"), [(1_000, True), (6_000, True), (10_000, False)])
def test_the_resampler_keeps_speech_and_lets_nothing_fold_back(
    signed_in: Browser, hertz: int, passes: bool
) -> None:
    samples = signed_in.run_async(
        """
        const context = new OfflineAudioContext(1, 48000, 48000);
        await context.audioWorklet.addModule("page/capture.js");
        const node = new AudioWorkletNode(context, "capture");
        const heard = [];
        node.port.onmessage = ({data}) => heard.push(...data.samples);
        const tone = new OscillatorNode(context, {frequency: args[0]});
        tone.connect(node).connect(context.destination);
        tone.start();
        await context.startRendering();
        await new Promise(resolve => setTimeout(resolve, 200));
        return heard;
        """,
        hertz,
    )
    heard = np.array(samples[1_600:]) / 32_767
    assert len(heard) >= 12_000
    spectrum = np.abs(np.fft.rfft(heard * np.hanning(len(heard)))) / (len(heard) / 4)
    if passes:
        peak = int(spectrum.argmax())
        assert peak * 16_000 / len(heard) == pytest.approx(hertz, abs=5)
        assert spectrum[peak] == pytest.approx(1, abs=0.1)
    else:
        assert spectrum.max() < 0.01


def test_a_websocket_takes_the_key_as_browsers_send_it(served: Server) -> None:
    url = f"ws://127.0.0.1:{served.port}/v1/realtime?intent=transcription&model=speech"
    key = Subprotocol(f"openai-insecure-api-key.{KEY}")
    with connect(url, subprotocols=[Subprotocol("realtime"), key]) as socket:
        assert socket.subprotocol == "realtime"
        assert json.loads(socket.recv(timeout=30))["type"] == "session.created"
    with pytest.raises(InvalidStatus, match="401"):
        connect(url, subprotocols=[Subprotocol("realtime"), Subprotocol(f"{key}x")])
