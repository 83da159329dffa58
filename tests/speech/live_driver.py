"""Plays a stream to a live session, with a detector and an engine that know its content."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
from numpy.typing import NDArray

from galley.speech.features import LogMel
from galley.speech.live import LiveSession
from galley.speech.live_events import Completed, Delta, LiveEvent
from galley.speech.options import LiveOptions
from galley.speech.segmenter import VAD_FRAME
from galley.speech.tokens import SpeechTokens
from galley.text.tokenizer import Tokenizer
from galley.types import EngineRequest, Output
from tests.payloads import spoken
from tests.speech import tiny
from tests.speech.answers import RATE, Answer, model_info, says, to
from tests.speech.tiny import token_id

INPUT_SAMPLES = tiny.INPUT_SECONDS * RATE
BLOCK = RATE // 10
ENGLISH = LiveOptions(language="en")


@dataclass(frozen=True)
class Word:
    """A word, spoken from one sample to another."""

    text: str
    start: int
    end: int


class Places(LogMel):
    """Features that encode the audio's position in the stream: samples are their own positions."""

    def __init__(self) -> None:
        self.chunk_samples = INPUT_SAMPLES

    def __call__(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        assert 0 < len(samples) <= INPUT_SAMPLES
        assert samples[-1] - samples[0] == len(samples) - 1
        return np.full((2, tiny.MELS), [[samples[0]], [samples[-1] + 1]], np.float32)


@dataclass
class Said:
    """A detector that knows when there is speech."""

    words: Sequence[Word]
    position: int = 0

    def feed(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        frames = []
        end = int(samples[-1]) + 1 if len(samples) else self.position
        while self.position + VAD_FRAME <= end:
            first, beyond = self.position, self.position + VAD_FRAME
            heard = any(word.start < beyond and first < word.end for word in self.words)
            frames.append(0.9 if heard else 0.1)
            self.position = beyond
        return np.array(frames, np.float32)

    def finish(self) -> NDArray[np.float32]:
        return np.empty(0, np.float32)


def audio_range(request: EngineRequest) -> tuple[int, int]:
    """Return the first sample, and the one past the last."""
    audio = spoken(request).encoder_input
    values = np.frombuffer(audio.data, "<f4").reshape(2, tiny.MELS)
    return int(values[0, 0]), int(values[1, 0])


def given_text(request: EngineRequest, tokenizer: Tokenizer) -> str:
    """Return the text that the decoder should continue."""
    begin = spoken(request).prompt.index(token_id("<|notimestamps|>")) + 1
    return tokenizer.decode(spoken(request).prompt[begin:])


@dataclass
class Listener:
    """An engine that recognizes every whole word of its audio, each once."""

    tokenizer: Tokenizer
    words: Sequence[Word]
    requests: list[EngineRequest] = field(default_factory=list)
    mishears: Callable[[str], str] = str

    def __call__(self, request: EngineRequest) -> Output:
        self.requests.append(request)
        start, end = audio_range(request)
        heard = [w.text for w in self.words if w.end > start + 800 and w.end <= end]
        known = given_text(request, self.tokenizer).split()[-1:]
        rest = heard[heard.index(known[0]) + 1 :] if known and known[0] in heard else heard
        return to(
            request, says(self.tokenizer, "".join(f" {self.mishears(word)}" for word in rest))
        )


class Driver:
    """A session and a slow engine: each answer takes several blocks of audio."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        words: Sequence[Word],
        answer: Answer | None = None,
        options: LiveOptions = ENGLISH,
        delay: int = 1,
        context: int = 448,
    ) -> None:
        self.listener = Listener(tokenizer, words)
        self.answer = answer or self.listener
        info = model_info()
        text = msgspec.structs.replace(info.require_text(), max_model_len=context)
        info = msgspec.structs.replace(info, text=text)
        tokens = SpeechTokens(info, tokenizer)
        self.session = LiveSession(tokens, Places(), Said(words), options, "s")
        self.events: list[LiveEvent] = []
        self.delay = delay
        self.most_held = 0
        self._place = 0
        self._running: EngineRequest | None = None
        self._left = 0

    def play(self, seconds: float) -> None:
        """Feed more of the stream."""
        for _ in range(round(seconds * RATE / BLOCK)):
            self.session.feed(np.arange(self._place, self._place + BLOCK, dtype=np.float32))
            self._place += BLOCK
            self._step()

    def drain(self) -> None:
        """Run until the engine is idle."""
        while self._running or not self.session.idle:
            self._step()
        self.events += self.session.events()

    def _step(self) -> None:
        if self._running is not None and self._left <= 0:
            request, self._running = self._running, None
            self.session.take(self.answer(request))
        self._left -= 1
        if self._running is None and (requests := self.session.request()) is not None:
            self._running, self._left = requests, self.delay
        self.events += self.session.events()
        self.most_held = max(self.most_held, self.session.buffered_samples)

    def of(self, *kinds: type[LiveEvent]) -> list[LiveEvent]:
        return [event for event in self.events if isinstance(event, kinds)]

    def texts(self) -> list[str]:
        """Return the text of completed turns, which must equal the deltas sent for them."""
        pending: dict[int, str] = {}
        completed = []
        for event in self.events:
            if isinstance(event, Delta):
                pending[event.turn] = pending.get(event.turn, "") + event.text
            elif isinstance(event, Completed):
                assert event.text == pending.pop(event.turn, "")
                completed.append(event.text)
        return completed


def speech(*parts: str | float, length: float = 0.35, gap: float = 0.0) -> list[Word]:
    """Return consecutive words of equal length; a number is a pause in seconds."""
    words: list[Word] = []
    at = 0.5
    for part in parts:
        if isinstance(part, float):
            at += part
            continue
        for text in part.split():
            words.append(Word(text, round(at * RATE), round((at + length) * RATE)))
            at += length + gap
    return words
