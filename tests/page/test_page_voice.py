"""A conversation by voice in Chromium, whose microphone asks a question again and again."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from galley.formats.source import BUNDLED, BUNDLED_SPEECH
from galley.speech.audio import Recording
from tests.page.browser import CHROMIUM, DRIVER, Browser
from tests.runtimes import voice_files
from tests.server.serving import Server
from tests.speech.recordings import CALL, encode

pytestmark = pytest.mark.xdist_group("page")

PARTS = {
    "transcript_ms": "transcript",
    "endpoint_ms": "end of the turn",
    "first_words_ms": "first words",
    "first_audio_ms": "first audio",
}


@pytest.fixture(scope="module")
def talks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that hears, answers and speaks, slowly: an answer lasts until the next question."""
    folder = tmp_path_factory.mktemp("talks")
    voice = voice_files.voice(folder / "ada.onnx", frames=400, audio={"sample_rate": 8_000})
    models = [f"chat={BUNDLED}", f"ears={BUNDLED_SPEECH}", f"voice={voice}"]
    with Server(models, folder / "log", threads=1) as running:
        yield running


@pytest.fixture(scope="module")
def asking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A Chromium whose microphone plays a question and four seconds of silence, in a loop."""
    if CHROMIUM is None or DRIVER is None:
        pytest.skip("no Chromium: apt-get install chromium chromium-driver")
    call = np.concatenate(list(Recording(CALL, sample_rate=16_000)))[24_000:72_000]
    path = tmp_path_factory.mktemp("question") / "question.wav"
    path.write_bytes(encode("wav", np.concatenate([call, np.zeros(64_000, np.float32)])))
    browser = Browser(microphone=path)
    yield browser
    browser.close()


def received(browser: Browser) -> list[dict[str, Any]]:
    """Return the server's events since Chromium's log was last read."""
    messages = [json.loads(entry["message"])["message"] for entry in browser.logged("performance")]
    return [
        json.loads(message["params"]["response"]["payloadData"])
        for message in messages
        if message["method"] == "Network.webSocketFrameReceived"
    ]


def test_an_answer_is_spoken_timed_and_interrupted(asking: Browser, talks: Server) -> None:
    asking.open(talks, "voice")
    asking.until(asking.find("talk").is_enabled)
    asking.logged("performance")
    asking.find("talk").click()
    asking.until(lambda: asking.all(".budget"))
    assert asking.find("talk").text == "Stop"
    asking.until(
        lambda: "interrupted" in asking.text("talked")
    )  # by the question's next repetition
    asking.find("talk").click()
    asking.until(lambda: asking.find("talk").text == "Talk")
    events = received(asking)
    of_kind = {
        kind: [e for e in events if e["type"] == kind] for kind in {e["type"] for e in events}
    }
    assert "error" not in of_kind
    timing = of_kind["response.timing"][0]
    shown = {
        row.get_attribute("data-part"): row.text.split("\n")
        for row in asking.all(".budget")[0].find_elements("css selector", "li")
    }
    assert shown == {part: [name, f"{timing[part]} ms"] for part, name in PARTS.items()}
    assert f"{timing['sent_ms']} ms after" in asking.all(".budget p")[0].text
    said = [e["transcript"] for e in events if e["type"].endswith("transcription.completed")]
    turns = [turn.text for turn in asking.all("#talked .user p")]
    assert said[0].strip() in turns
    assert of_kind["response.output_audio.delta"]
    # What was still to be played was dropped with the interruption.
    cut = next(i for i, e in enumerate(events) if e["type"] == "conversation.item.truncated")
    started = [i for i, e in enumerate(events) if e["type"].endswith("speech_started")]
    assert any(i < cut for i in started)
    assert not asking.complaints()


def test_a_player_stops_at_once(asking: Browser, talks: Server) -> None:
    asking.open(talks, "voice")
    seconds = asking.run_async(
        """
        const { Player } = await import("./page/player.js");
        const context = new OfflineAudioContext(1, 48000, 24000);
        const player = new Player(context, 24000);
        const loud = btoa(String.fromCharCode(...new Uint8Array(new Int16Array(12000).fill(16384).buffer)));
        player.add(loud);
        player.add(loud);
        context.suspend(0.75).then(() => { player.stop(); context.resume(); });
        const played = (await context.startRendering()).getChannelData(0);
        return played.filter((sample) => sample > 0.4).length / 24000;
        """
    )
    assert seconds == pytest.approx(0.75, abs=0.02)


def test_audio_that_crosses_an_interruption_is_not_played(asking: Browser, talks: Server) -> None:
    asking.open(talks, "voice")
    playing = asking.run_async(
        """
        const { Talk } = await import("./page/talk.js");
        window.WebSocket = class {
          static OPEN = 1;
          readyState = 1;
          constructor() { setTimeout(() => this.onopen()); }
          send() {}
          close() {}
        };
        const ignored = ["onState", "onPeak", "onSaid", "onWords", "onTiming", "onCut"];
        const talk = new Talk(Object.fromEntries(ignored.map((name) => [name, () => {}])));
        const running = talk.run();
        while (!talk.socket?.onmessage) await new Promise((resolve) => setTimeout(resolve, 10));
        const loud = btoa(String.fromCharCode(...new Uint8Array(new Int16Array(12000).fill(16384).buffer)));
        const counts = [
          { type: "input_audio_buffer.speech_started" },
          { type: "response.output_audio.delta", delta: loud },
          { type: "conversation.item.truncated" },
        ].map((event) => {
          talk.socket.onmessage({ data: JSON.stringify(event) });
          return talk.player.playing.size;
        });
        talk.stop();
        await running;
        return counts;
        """
    )
    assert playing == [0, 1, 0]
