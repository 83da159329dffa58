"""One live stream's way through the engine: samples in, engine requests out, final text as soon as it is.

It waits for nothing. Who drives it feeds it samples while it has room, hands its request to an engine, and
gives it what the engine says. There is one request at a time; the next one takes all audio that came
meanwhile. Speech is looked at again and again while it grows; what two looks in a row agree on is final.
Silence is never looked at.
"""

import itertools
from collections import deque
from typing import Final

import numpy as np
from numpy.typing import NDArray

from galley.errors import RequestError
from galley.speech.agreement import Agreement, heard_in, separator, split
from galley.speech.attempts import chosen
from galley.speech.endpoint import Change, Started, TurnFinder
from galley.speech.features import SAMPLE_RATE, LogMel
from galley.speech.live_events import (
    Committed,
    Completed,
    Delta,
    Failed,
    Interim,
    LiveEvent,
    SpeechStarted,
    SpeechStopped,
)
from galley.speech.looks import Looks
from galley.speech.options import LiveOptions
from galley.speech.spans import FRAME, SAMPLES_PER_MS, longest_pause
from galley.speech.stretch import SETTLED, Look, Stretch, Turn
from galley.speech.tape import Tape
from galley.speech.tokens import SpeechTokens
from galley.speech.windows import Probabilities
from galley.types import EngineRequest, Output

_BACKLOG: Final = 30 * SAMPLE_RATE
"""Samples beyond a window that may wait for the engine."""
_LEAST_COMMIT: Final = 100 * SAMPLES_PER_MS
_LANGUAGE_AFTER: Final = 1 * SAMPLE_RATE
"""Samples from which a language can be told."""


class LiveSession:
    """One stream.

    Args:
        tokens: of the model.
        features: of its windows.
        detector: a new stream of one.
        options: what is wanted; see :meth:`configure`.
        request_id: unique; the engine's requests are named after it.
        cache_salt: tenant, whose windows no other one's requests find in the cache.

    Raises:
        RequestError: the model does not know the language.
    """

    def __init__(
        self,
        tokens: SpeechTokens,
        features: LogMel,
        detector: Probabilities,
        options: LiveOptions,
        request_id: str,
        *,
        cache_salt: str = "",
    ) -> None:
        self._tokens = tokens
        self._features = features
        self._detector = detector
        self._looks = Looks(tokens, features, request_id, cache_salt)
        self._finder = TurnFinder(options.turns)
        self._tape = Tape()
        self._heard: deque[float] = deque()
        """Probabilities of the last frames before the finder's position."""
        self._turn = Turn(0, 0)
        self._turns: deque[Turn] = deque([self._turn])
        self._stretches: deque[Stretch] = deque()
        self._open: Stretch | None = None
        """The last stretch, while somebody speaks."""
        self._context: list[int] = []
        self._guessed = ""
        self._events: list[LiveEvent] = []
        self._options = options
        self.language = self._known(options.language)
        """A code; None until it is detected."""
        self.configure(options)

    def configure(self, options: LiveOptions) -> None:
        """What is wanted from here on.

        Raises:
            RequestError: the model does not know the language.
        """
        self._tokens.check(options.language, "transcribe")
        if options.language != self._options.language:
            self.language = self._known(options.language)
        self._options = options
        self._finder.options = options.turns
        prompt = options.prompt.strip()
        self._prompt = self._looks.spelled(" " + prompt if prompt else "")

    def _known(self, language: str | None) -> str | None:
        return language if language or self._tokens.detects_language else "en"

    @property
    def has_room(self) -> bool:
        """Whether more samples are welcome, some seconds of them at a time."""
        first = self._stretches[0].start if self._stretches else self._tape.end
        return self._tape.end - first < self._features.window_samples + _BACKLOG

    @property
    def idle(self) -> bool:
        """Whether all speech is transcribed, but for what goes on."""
        return self._looks.look is None and (not self._stretches or self._stretches[0].end is None)

    @property
    def held(self) -> int:
        """Samples that are kept."""
        return self._tape.held

    def feed(self, samples: NDArray[np.float32]) -> None:
        """What comes next of the stream, mono float32 at 16 kHz."""
        self._tape.append(samples)
        for probability in self._detector.feed(samples).tolist():
            self._heard.append(probability)
            change = self._finder.feed(probability)
            if change is not None:
                self._changed(change)
        self._forget()

    def commit(self) -> None:
        """End the turn here, whatever is being said.

        Raises:
            RequestError: there is hardly any audio since the last one.
        """
        now = self._tape.end
        if now - self._turn.start < _LEAST_COMMIT:
            raise RequestError(
                f"there are {(now - self._turn.start) // SAMPLES_PER_MS} ms of audio since the last "
                f"turn; one has at least {_LEAST_COMMIT // SAMPLES_PER_MS}",
                code="input_audio_buffer_commit_empty",
            )
        if self._open is not None:
            self._close(self._open, spoken=self._finder.silence or now, end=now)
        self._finder.cut(now)
        self._end_turn(now)

    def clear(self) -> None:
        """Forget the turn that is not committed yet, its audio and what was told of its text."""
        self._drop(self._turn)
        self._turns.pop()
        self._open = None
        self._finder.cut(self._tape.end)
        self._begin_turn(self._tape.end)

    def request(self) -> EngineRequest | None:
        """What the engine is to be given now."""
        look = self._next_look() if self._looks.look is None else None
        if look is None:
            return None
        if look.purpose == "grow":
            look.stretch.seen = look.end
        samples = self._tape.cut(look.start, look.end)
        previous = self._prompt + self._context
        return self._looks.start(look, samples, self.language or "", previous, self._options)

    def take(self, output: Output) -> None:
        """What the engine says of the request."""
        look = self._looks.take(output)
        if look is None:
            return
        if output.finish_reason in ("error", "abort"):
            message = output.error or "the engine gave the request up"
            self._fail(look.stretch.turn, message)
        elif look.purpose == "language":
            self.language = self.language or self._tokens.language(look.tokens[0])
        elif look.stretch in self._stretches:
            self._looked(look)
        self._settle()
        self._forget()

    def events(self) -> list[LiveEvent]:
        """What there is to tell, each once, in order."""
        self._settle()
        events, self._events = self._events, []
        return events

    # Where turns and stretches begin and end.

    def _changed(self, change: Change) -> None:
        now = self._finder.position
        if isinstance(change, Started):
            self._open = Stretch(self._turn, start=change.at, seen=now)
            if not self._turn.failed:
                self._stretches.append(self._open)
            if self._options.commit_turns:
                self._turn.start = change.at
                started = SpeechStarted(self._turn.number, change.at // SAMPLES_PER_MS)
                self._events.append(started)
        elif self._open is not None:
            self._close(self._open, spoken=change.at, end=min(now, change.at + SETTLED))
            if self._options.commit_turns:
                self._events.append(SpeechStopped(self._turn.number, now // SAMPLES_PER_MS))
                self._end_turn(now)

    def _close(self, stretch: Stretch, *, spoken: int, end: int) -> None:
        stretch.spoken, stretch.end = spoken, end
        self._open = None

    def _end_turn(self, at: int) -> None:
        self._turn.end = at
        self._events.append(Committed(self._turn.number))
        self._begin_turn(at)

    def _begin_turn(self, at: int) -> None:
        self._turn = Turn(self._turn.number + 1, at)
        self._turns.append(self._turn)

    def _drop(self, turn: Turn) -> None:
        if self._stretches and self._stretches[0].turn is turn:
            self._guess(turn, "")
        self._stretches = deque(s for s in self._stretches if s.turn is not turn)

    def _fail(self, turn: Turn, message: str) -> None:
        if turn in self._turns:
            turn.failed = True
            self._drop(turn)
            self._events.append(Failed(turn.number, message))

    def _settle(self) -> None:
        """Take what needs no further look for complete, and tell which turns are."""
        while self._looks.look is None and self._stretches:
            stretch = self._stretches[0]
            heard = stretch.spoken <= stretch.start or (
                stretch.settled and self._options.rules.beam_size == 1
            )
            if stretch.end is None or not heard:
                break
            self._finish(stretch, stretch.last or stretch.agreement.final)
        while (turn := self._turns[0]).end is not None:
            if any(stretch.turn is turn for stretch in self._stretches):
                break
            self._turns.popleft()
            if not turn.failed:
                seconds = (turn.end - turn.start) / SAMPLE_RATE
                self._events.append(Completed(turn.number, turn.text, seconds))

    def _forget(self) -> None:
        needed = self._finder.needed_from
        if self._stretches:
            needed = min(needed, self._stretches[0].start)
        self._tape.forget(needed)
        while self._heard and self._finder.position - (len(self._heard) - 1) * FRAME <= needed:
            self._heard.popleft()

    # What is looked at, and when.

    def _next_look(self) -> Look | None:
        self._settle()
        if not self._stretches:
            return None
        stretch = self._stretches[0]
        start, given = stretch.start, stretch.agreement.final
        end = self._finder.position if stretch.end is None else stretch.end
        if self.language is None:
            if stretch.end is None and end - start < _LANGUAGE_AFTER:
                return None
            return Look(stretch, start, min(end, start + self._features.window_samples), "language")
        if end - start > self._features.window_samples or self._is_long(given):
            stretch.cut = stretch.cut or self._cut_place(start, end)
            return Look(stretch, start, stretch.cut, "head")
        if stretch.end is not None:
            return Look(stretch, start, end, "final", given)
        return Look(stretch, start, end, "grow", given) if self._is_due(stretch, end) else None

    def _is_due(self, stretch: Stretch, end: int) -> bool:
        """While somebody speaks every now and then, in silence once, when the last word is whole."""
        silence = self._finder.silence
        if silence is None:
            return end - stretch.seen >= self._options.interval_ms * SAMPLES_PER_MS
        return end - silence >= SETTLED and stretch.seen < silence + SETTLED

    def _is_long(self, given: str) -> bool:
        """Whether so much text leaves too little room for more."""
        return len(self._looks.spelled(given)) > self._tokens.info.max_model_len // 4

    def _cut_place(self, start: int, end: int) -> int:
        """The longest pause in the latter half of a window, or the moment that is least like speech."""
        end = min(end, start + self._features.window_samples)
        oldest = self._finder.position // FRAME - len(self._heard)
        first = max(oldest, -(-(start + end) // (2 * FRAME)))
        frames = list(itertools.islice(self._heard, first - oldest, end // FRAME - oldest))
        if not frames:
            return end
        pause = longest_pause(frames, self._options.turns.silence_below)
        if pause is None:
            pause = frames.index(min(frames)) * FRAME + FRAME // 2
        return first * FRAME + pause

    # What was seen.

    def _looked(self, look: Look) -> None:
        stretch, rules = look.stretch, self._options.rules
        attempt = self._looks.attempt(look, rules.temperatures[len(stretch.attempts)])
        if not look.is_last:
            sure = look.complete and attempt.is_good(rules) and not attempt.is_silence(rules)
            self._grown(stretch, self._looks.text(look.given, look.tokens) if sure else None)
            return
        stretch.attempts.append(attempt)
        taken = chosen(stretch.attempts, rules)
        if taken is None:
            return  # the next look is at the next temperature
        stretch.attempts = []
        silence = taken.is_silence(rules)
        text = look.given if silence else self._looks.text(look.given, taken.tokens)
        if look.purpose == "final":
            self._finish(stretch, text)
        else:
            self._cut(stretch, look.end, text)

    def _grown(self, stretch: Stretch, text: str | None) -> None:
        """A look at a window that goes on; None if it is not to be trusted."""
        stretch.last = text
        if text is None:
            stretch.agreement.doubt()
        else:
            fresh = not stretch.agreement.final
            self._say(stretch, stretch.agreement.hear(text, self.language or ""), fresh=fresh)
        guess = stretch.agreement.interim
        self._guess(stretch.turn, self._joined(stretch, guess, not stretch.agreement.final))

    def _finish(self, stretch: Stretch, text: str) -> None:
        fresh = not stretch.agreement.final
        self._say(stretch, stretch.agreement.close(text), fresh=fresh)
        self._guess(stretch.turn, "")
        self._remember(stretch.agreement.final)
        self._stretches.popleft()

    def _cut(self, stretch: Stretch, at: int, head: str) -> None:
        """The window begins at ``at`` from now on; ``head`` is what is said before."""
        language, agreement = self.language or "", stretch.agreement
        words, final = split(head, language), split(agreement.final, language)
        kept, told = heard_in(words, final) if words else (len(final), 0)
        rest = "".join(final[kept:])
        self._say(stretch, "".join(words[told:]), fresh=not agreement.final)
        self._remember(head)
        if self._is_long(rest):
            rest = ""
        stretch.agreement = Agreement(rest if head.startswith(" ") else rest.lstrip())
        stretch.start = stretch.seen = at
        stretch.cut = stretch.last = None
        self._guess(stretch.turn, "")

    def _say(self, stretch: Stretch, text: str, *, fresh: bool) -> None:
        text = self._joined(stretch, text, fresh)
        if text:
            stretch.turn.text += text
            self._events.append(Delta(stretch.turn.number, text))

    def _guess(self, turn: Turn, text: str) -> None:
        if text != self._guessed:
            self._guessed = text
            self._events.append(Interim(turn.number, text))

    def _joined(self, stretch: Stretch, text: str, fresh: bool) -> str:
        """``text`` as it follows the turn's; ``fresh`` if nothing of its window was told before."""
        if not stretch.turn.text:
            return text.lstrip()
        if not fresh or not text.strip():
            return text
        return separator(self.language or "") + text.lstrip()

    def _remember(self, text: str) -> None:
        if self._options.rules.condition_on_previous_text:
            self._context += self._looks.spelled(text)
            self._context = self._context[-self._tokens.info.max_model_len :]
