"""``galley.Transcriber``: recordings and live audio to text, with the engine in the caller's process."""

import uuid
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final, Self, cast

from numpy.typing import NDArray

from galley.errors import RequestError, shown
from galley.formats.source import BUNDLED_SPEECH
from galley.llm.local import Closable, LocalEngine
from galley.settings.engine import EngineSettings
from galley.settings.fields import by_field
from galley.speech.arrays import pcm_of
from galley.speech.audio import SAMPLE_RATE, RawPcm, Recording, Samples, Source
from galley.speech.decoder import Audio, Decoder
from galley.speech.diarize.diarizer import Diarization
from galley.speech.diarize.diarizer import load as load_diarizer
from galley.speech.diarize.options import BUNDLED_FILES, DiarizeOptions, NetFiles
from galley.speech.kept import KeptRecording
from galley.speech.live import LiveSession
from galley.speech.live_events import LiveEvent
from galley.speech.model import SpeechModel
from galley.speech.non_speech import Silenced, Times
from galley.speech.options import LiveOptions, TranscribeOptions
from galley.speech.results import Segment
from galley.speech.session import Session
from galley.speech.transcription import AT_A_TIME, Ended, Transcription, in_turn, together
from galley.text.tokenizer import Tokenizer
from galley.types import Output
from galley.types.engine_stats import EngineStats
from galley.types.model_info import ModelInfo

CHUNKS_IN_FLIGHT: Final = 8
"""Concurrent chunks of one recording; more fill the batch better, but use more memory."""


class Transcriber(Closable):
    """A loaded speech model. Use it as a context manager or call :meth:`close`; nothing is left running.

    Several threads may transcribe at once; their chunks share the engine's batch. For several recordings,
    :meth:`together` is faster, and :meth:`transcribe_each` for any number of them.
    """

    def __init__(self, model: str | Path = BUNDLED_SPEECH, **settings: Any) -> None:
        """Load a model.

        Args:
            model: a folder or a hub id; the bundled speech model if none is given.
            settings: any other field of :class:`galley.settings.engine.EngineSettings`.

        Raises:
            ModelError: the model cannot be found or used, or is not a speech model.
            SettingsError: a setting is wrong.
        """
        self._load(
            EngineSettings(
                model=str(model), **by_field(EngineSettings, settings, source="galley.Transcriber")
            )
        )

    @classmethod
    def from_settings(cls, settings: EngineSettings) -> Self:
        """Load the model of an :class:`EngineSettings`. Raises the same errors as the constructor."""
        transcriber = cls.__new__(cls)
        transcriber._load(settings)
        return transcriber

    def _load(self, settings: EngineSettings) -> None:
        self._decoder = Decoder()
        self._decoder.start()
        try:
            self._engine = LocalEngine(settings)
        except BaseException:
            self._decoder.close()
            raise
        try:
            self._model = SpeechModel(self.info, Tokenizer.load(self._engine.folder))
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        return f"Transcriber({self._engine.describe()})"

    @property
    def info(self) -> ModelInfo:
        """The model's sizes, defaults and start-up times."""
        return self._engine.info

    @property
    def stats(self) -> EngineStats:
        """The engine's counters so far, such as its steps, and how full it is now."""
        return self._engine.engine.stats

    def transcribe(
        self,
        source: Source | NDArray[Any],
        options: TranscribeOptions | None = None,
        *,
        raw: RawPcm | None = None,
        sample_rate: int | None = None,
        normalize: bool = False,
        max_seconds: float | None = None,
        track: int | None = None,
        channel: int | None = None,
        silent: Sequence[Times] = (),
    ) -> Transcription:
        """Start transcribing a recording; iterate over the result to get its segments.

        Args:
            source: a path, a file's bytes, an open file that can seek, or an array: mono ``[samples]``,
                floats in [-1, 1] or 16-bit integers.
            options: language, task, timestamps and so on.
            raw: format of a ``source`` without a header.
            sample_rate: sample rate of an array, in Hz; default: 16,000.
            normalize: even out loudness.
            max_seconds: longer recordings are rejected.
            track: the file's audio track to transcribe, counted from 1; default: the file's own default.
            channel: the track's channel to transcribe, counted from 1; default: all channels, mixed.
            silent: passages in seconds that count as silence, such as those of ``find_sounds``.

        Raises:
            AudioError: the recording cannot be read.
            RequestError: the model does not support the language or the task, an argument has the wrong
                type, or there is no such track or channel.
        """
        options = options or TranscribeOptions()
        if not isinstance(options, TranscribeOptions):
            raise RequestError(
                f"expected TranscribeOptions(language='en', ...), got {shown(options)}",
                param="options",
            )
        is_file = isinstance(source, str | Path | bytes) or hasattr(source, "read")
        if is_file:
            if sample_rate is not None:
                raise RequestError(
                    "sample_rate applies to arrays only; for a file without a header, use raw",
                    param="sample_rate",
                )
        elif raw is not None:
            raise RequestError(
                "raw applies to files only; for an array, use sample_rate", param="raw"
            )
        else:
            for name, value in (("track", track), ("channel", channel)):
                if value is not None:
                    raise RequestError(f"{name} is one of a file; an array has one", param=name)
        recording: Audio
        if is_file:
            recording = self._decoder.open(
                cast(Source, source),
                raw=raw,
                normalize=normalize,
                max_seconds=max_seconds,
                track=track,
                channel=channel,
            )
        else:  # samples from the caller, without a container
            samples, raw = pcm_of(source, sample_rate or SAMPLE_RATE)
            recording = Recording(samples, raw=raw, normalize=normalize, max_seconds=max_seconds)
        return self.transcribe_audio(recording, options, silent=silent)

    def transcribe_audio(
        self, recording: Audio, options: TranscribeOptions, *, silent: Sequence[Times] = ()
    ) -> Transcription:
        """Start transcribing an open recording; see :meth:`transcribe`.

        The recording is closed by the result, or if there is an error.

        Raises:
            RequestError: the model does not support the language or the task.
        """
        try:
            session = Session(
                self._model.tokens,
                options,
                uuid.uuid4().hex,
                max_chunks=CHUNKS_IN_FLIGHT,
                pads=self._model.pads,
            )
        except BaseException:
            recording.close()
            raise
        if silent:
            recording = Silenced(recording, silent)
        return Transcription(self._engine, session, self._model.chunks(recording, options))

    def together(self, transcriptions: Sequence[Transcription]) -> Iterator[tuple[int, Segment]]:
        """Transcribe several recordings at the same time, in the caller's thread.

        Their chunks share the engine's steps, as those of several threads do, but no thread waits for
        another one's Python code between two steps.

        Args:
            transcriptions: of this transcriber; they cannot be iterated over before or afterwards.

        Yields:
            The place of a recording in ``transcriptions``, and its next segment.

        Raises:
            AudioError: a recording cannot be read any further.
        """
        return together(self._engine, transcriptions)

    def transcribe_each(
        self, recordings: Iterable[Callable[[], Transcription]], *, at_a_time: int = AT_A_TIME
    ) -> Generator[tuple[int, Segment | Ended], None, None]:
        """Transcribe any number of recordings, some at the same time, in the caller's thread.

        Unlike with :meth:`together`, a recording is opened when it is its turn, and one that cannot be read
        does not end the others.

        Args:
            recordings: each begins a transcription of this transcriber:
                ``lambda: transcriber.transcribe(path)``.
            at_a_time: the most recordings that are open at the same time.

        Yields:
            The place of a recording in ``recordings``, and its next segment, or :class:`Ended` once it has
            no more. Each recording's segments are in order.

        Raises:
            RequestError: ``at_a_time`` is less than 1.
        """
        if at_a_time < 1:
            raise RequestError(f"at_a_time must be at least 1, got {at_a_time}", param="at_a_time")
        return in_turn(self._engine, recordings, at_a_time)

    def open(
        self,
        source: Source,
        *,
        raw: RawPcm | None = None,
        track: int | None = None,
        channel: int | None = None,
    ) -> Audio:
        """Decode a recording to 16 kHz samples without transcribing it. The caller closes it.

        Raises:
            AudioError: the recording cannot be read.
            RequestError: there is no such track or channel.
        """
        return self._decoder.open(source, raw=raw, track=track, channel=channel)

    def keep(self, source: Source) -> KeptRecording:
        """Decode a recording once, for several readings. The caller closes it.

        Raises:
            AudioError: the recording cannot be read.
            EngineNotReady: there is no space for its samples.
        """
        return KeptRecording(self._decoder.open(source, apart=True))

    def diarize(
        self,
        source: Source,
        options: DiarizeOptions | None = None,
        *,
        raw: RawPcm | None = None,
        track: int | None = None,
        channel: int | None = None,
        models: NetFiles = BUNDLED_FILES,
        silent: Sequence[Times] = (),
    ) -> Diarization:
        """Find out who speaks when in a recording, without transcribing it.

        Args:
            source: a path, a file's bytes, or an open file that can seek.
            options: the number of speakers, and known ones.
            raw, track, channel: as for :meth:`transcribe`.
            models: files of the networks; default: the bundled ones.
            silent: passages in seconds that count as silence.

        Raises:
            AudioError: the recording cannot be read.
            RequestError: there is no such track or channel, or a reference is not usable.
            ModelError: the networks are missing, or are others.
        """
        recording = self.open(source, raw=raw, track=track, channel=channel)
        return self.diarize_audio(
            recording, options or DiarizeOptions(), models=models, silent=silent
        )

    def diarize_audio(
        self,
        recording: Audio,
        options: DiarizeOptions,
        *,
        models: NetFiles = BUNDLED_FILES,
        silent: Sequence[Times] = (),
    ) -> Diarization:
        """Find out who speaks when in an open recording, which is closed; see :meth:`diarize`."""
        if silent:
            recording = Silenced(recording, silent)
        with closing(recording):
            return load_diarizer(models)(recording, options, self._decoder.open)

    def live(self, options: LiveOptions | None = None) -> "LiveTranscription":
        """Start transcribing live audio.

        Raises:
            RequestError: the model does not support the language.
        """
        session = self._model.live(options or LiveOptions(), uuid.uuid4().hex)
        return LiveTranscription(self._engine, session)

    def close(self) -> None:
        """Free the model. Later calls fail."""
        self._decoder.close()
        self._engine.close()


class LiveTranscription:
    """A live stream that is transcribed as it is fed. Memory does not grow with the stream's length."""

    def __init__(self, engine: LocalEngine, session: LiveSession) -> None:
        """Create the object; called by :meth:`Transcriber.live`."""
        self._engine = engine
        self._session = session

    def feed(self, samples: Samples) -> list[LiveEvent]:
        """Feed the stream's next samples, mono float32 ``[samples]`` at 16 kHz, and return the new events.

        The call runs the model, so feed less than a second at a time.
        """
        self._session.feed(samples)
        return self._advance()

    def commit(self) -> list[LiveEvent]:
        """End the turn, even during speech. Raises RequestError if the turn has no audio."""
        self._session.commit()
        return self._advance()

    def _advance(self) -> list[LiveEvent]:
        while (request := self._session.request()) is not None:
            try:
                with closing(self._engine.run([request])) as run:
                    for output in run:
                        self._session.take(output)
            except BaseException:
                # An interrupt in a notebook fails this call, not the stream.
                self._session.take(Output(request_id=request.id, finish_reason="abort"))
                raise
        return self._session.events()
