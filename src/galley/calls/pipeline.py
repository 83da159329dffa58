"""One call: its recording in, its results in a folder out."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from galley.calls.estimate import estimate
from galley.calls.folder import CALL_FILE, CallRecord, now, write_json
from galley.calls.quality import add_sounds, add_transcript, differ, measure
from galley.calls.ticket import TicketWriter
from galley.redact.spans import Kind
from galley.speech import captions
from galley.speech.decoder import Audio
from galley.speech.diarize.options import BUNDLED_FILES, DiarizeOptions, NetFiles
from galley.speech.diarize.speakers import SpeakerLabels, by_channel, labeled
from galley.speech.kept import KeptRecording
from galley.speech.non_speech import Sounds, Times, find_sounds
from galley.speech.options import TranscribeOptions
from galley.speech.redacted_audio import write_redacted
from galley.speech.redaction import Passage, Redactor
from galley.speech.results import Info, Segment
from galley.speech.sources import TWO
from galley.speech.transcribe import Transcriber
from galley.speech.vad import SpeechDetector

_TYPED: Final[Kind] = "card"
_NUMBERS: Final[frozenset[Kind]] = frozenset(
    {"card", "security_code", "bank_account", "ssn", "phone", "date_of_birth"}
)
"""Kinds that callers type on a telephone's keys."""


@dataclass(frozen=True, kw_only=True)
class CallOptions:
    """The results to make for each call.

    Attributes:
        transcribe: options of the transcription, with word times.
        diarize: how speakers are found where they have no channels of their own.
        speaker_models: files of the networks of diarization.
        redact: kinds of personal data to remove.
        redacted_audio: also write the audio without what is removed; if numbers are, without key tones.
        keep_music: the recognizer gets music and the tones of keys, too.
        ticket: writes tickets; None: there are none.
        tenant: whose calls they are.
    """

    transcribe: TranscribeOptions
    diarize: DiarizeOptions
    speaker_models: NetFiles = BUNDLED_FILES
    redact: tuple[Kind, ...] = ()
    redacted_audio: bool = False
    keep_music: bool = False
    ticket: TicketWriter | None = None
    tenant: str = ""


@dataclass
class _Transcribed:
    """A transcript, redacted and by speaker."""

    segments: list[Segment]
    sounds: list[Sounds] = field(default_factory=list)
    infos: list[Info] = field(default_factory=list)
    passages: list[Passage] = field(default_factory=list)


class Pipeline:
    """Processes calls with one loaded speech model, one after another."""

    def __init__(self, transcriber: Transcriber, options: CallOptions) -> None:
        """Create the pipeline; ``transcriber`` stays the caller's."""
        self._transcriber = transcriber
        self._options = options
        self._detector = SpeechDetector()

    def run(self, call: str, recording: Path, into: Path) -> CallRecord:
        """Process a call and write its results to the folder ``into``. Only redacted text is written.

        Raises:
            AudioError: the recording cannot be read.
            RequestError: audio or ticket cannot be made.
            Unavailable, EngineError: trying again may help.
        """
        with self._transcriber.keep(recording) as kept:
            return self._run(call, recording, kept, into)

    def _run(self, call: str, recording: Path, kept: KeptRecording, into: Path) -> CallRecord:
        options = self._options
        sound = measure(kept.open(), self._detector)
        transcribed = self._transcribe(kept)
        warnings = tuple(
            dict.fromkeys(warning for info in transcribed.infos for warning in info.warnings)
        )
        info = msgspec.structs.replace(transcribed.infos[0], warnings=warnings)
        transcript = captions.as_verbose_json(transcribed.segments, info, ("segment", "word"))
        text = "".join(captions.as_text(transcribed.segments))
        (into / "transcript.json").write_bytes(transcript)
        (into / "transcript.txt").write_text(text, encoding="utf-8")
        sound = add_sounds(sound, transcribed.sounds)
        quality = add_transcript(sound, transcribed.segments, warnings)
        quality = msgspec.structs.replace(quality, estimated_wer=estimate(quality))
        write_json(into / "quality.json", quality)
        if options.redacted_audio:
            passages = [*transcribed.passages, *_typed(transcribed.sounds, options.redact)]
            write_redacted(kept.open(), passages, into / "redacted.wav")
        if options.ticket is not None:
            write_json(into / "ticket.json", options.ticket.write(text))
        record = CallRecord(
            id=call,
            tenant=options.tenant,
            recording=str(recording.resolve()),
            created=now(),
            duration=sound.seconds,
            speakers=len({segment.speaker for segment in transcribed.segments}),
            redact=options.redact,
            redacted=dict(Counter(passage.kind for passage in transcribed.passages)),
        )
        write_json(into / CALL_FILE, record)
        return record

    def _transcribe(self, kept: KeptRecording) -> _Transcribed:
        # Two channels with different audio are two speakers.
        if kept.channels == TWO and differ(kept.open(1), kept.open(2)):
            return self._by_channel(kept)
        options, transcribed = self._options, _Transcribed([])
        silent = self._silent(kept.open(), transcribed)
        found = self._transcriber.diarize_audio(
            kept.open(), options.diarize, models=options.speaker_models, silent=silent
        )
        labels = SpeakerLabels(found, merges=True)
        transcribed.segments = list(
            labeled(self._segments(kept.open(), transcribed, silent), labels)
        )
        return transcribed

    def _silent(self, audio: Audio, transcribed: _Transcribed) -> tuple[Times, ...]:
        """Find the sounds of a channel; return the passages that are kept from the recognizer."""
        found = find_sounds(audio)
        transcribed.sounds.append(found)
        return () if self._options.keep_music else (*found.music, *found.keys)

    def _by_channel(self, kept: KeptRecording) -> _Transcribed:
        transcribed = _Transcribed([])
        segments: list[Segment] = []
        for channel in (1, TWO):
            silent = self._silent(kept.open(channel), transcribed)
            found = self._segments(kept.open(channel), transcribed, silent)
            segments += (msgspec.structs.replace(one, channel=channel) for one in found)
        transcribed.segments = by_channel(captions.in_order(segments))
        return transcribed

    def _segments(
        self, audio: Audio, transcribed: _Transcribed, silent: tuple[Times, ...]
    ) -> Iterator[Segment]:
        """Yield the redacted segments of a recording or of one of its channels."""
        options = self._options
        transcription = self._transcriber.transcribe_audio(audio, options.transcribe, silent=silent)
        redactor = Redactor(options.redact)
        for segment in transcription:
            yield from redactor.take(segment) if options.redact else (segment,)
        yield from redactor.end()
        transcribed.infos.append(transcription.info)
        transcribed.passages += redactor.passages


def _typed(sounds: list[Sounds], redact: tuple[Kind, ...]) -> list[Passage]:
    """Return the key tones as passages to remove, if a kind of number is removed."""
    if not _NUMBERS.intersection(redact):
        return []
    return [Passage(_TYPED, start, end) for found in sounds for start, end in found.keys]
