"""One call: its recording in, its results in a folder out."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from galley.calls.folder import CALL_FILE, CallRecord, now, write_json
from galley.calls.quality import add_transcript, differ, measure
from galley.calls.ticket import TicketWriter
from galley.redact.spans import Kind
from galley.speech import captions
from galley.speech.decoder import DecodedRecording
from galley.speech.diarize.options import DiarizeOptions
from galley.speech.diarize.speakers import SpeakerLabels, by_channel, labeled
from galley.speech.options import TranscribeOptions
from galley.speech.redacted_audio import write_redacted
from galley.speech.redaction import Passage, Redactor
from galley.speech.results import Info, Segment
from galley.speech.transcribe import Transcriber
from galley.speech.vad import SpeechDetector

_TWO: Final = 2


@dataclass(frozen=True, kw_only=True)
class CallOptions:
    """What to make of each call.

    Attributes:
        transcribe: options of the transcription, with word times.
        diarize: how speakers are found where they have no channels of their own.
        speaker_models: folder with the networks of diarization; None: the bundled ones.
        redact: kinds of personal data to remove.
        redacted_audio: also write the audio without what is removed.
        ticket: writes tickets; None: there are none.
        tenant: whose calls they are.
    """

    transcribe: TranscribeOptions
    diarize: DiarizeOptions
    speaker_models: Path | None = None
    redact: tuple[Kind, ...] = ()
    redacted_audio: bool = False
    ticket: TicketWriter | None = None
    tenant: str = ""


@dataclass
class _Transcribed:
    """A transcript, redacted and by speaker."""

    segments: list[Segment]
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
        options = self._options
        opened = self._open(recording)
        sound = measure(opened, self._detector)
        transcribed = self._transcribe(recording, opened.channels)
        warnings = tuple(warning for info in transcribed.infos for warning in info.warnings)
        info = msgspec.structs.replace(transcribed.infos[0], warnings=warnings)
        transcript = captions.as_verbose_json(transcribed.segments, info, ("segment", "word"))
        text = "".join(captions.as_text(transcribed.segments))
        (into / "transcript.json").write_bytes(transcript)
        (into / "transcript.txt").write_text(text, encoding="utf-8")
        write_json(into / "quality.json", add_transcript(sound, transcribed.segments, warnings))
        if options.redacted_audio:
            write_redacted(self._open(recording), transcribed.passages, into / "redacted.wav")
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

    def _open(self, recording: Path, channel: int | None = None) -> DecodedRecording:
        opened = self._transcriber.open(recording, channel=channel)
        assert isinstance(opened, DecodedRecording)
        return opened

    def _transcribe(self, recording: Path, channels: int) -> _Transcribed:
        # Two channels with different sounds are two speakers.
        if channels == _TWO and differ(self._open(recording, 1), self._open(recording, 2)):
            return self._by_channel(recording)
        options = self._options
        found = self._transcriber.diarize(recording, options.diarize, models=options.speaker_models)
        transcribed = _Transcribed([])
        labels = SpeakerLabels(found, merges=True)
        transcribed.segments = list(labeled(self._segments(recording, None, transcribed), labels))
        return transcribed

    def _by_channel(self, recording: Path) -> _Transcribed:
        transcribed = _Transcribed([])
        segments: list[Segment] = []
        for channel in (1, 2):
            found = self._segments(recording, channel, transcribed)
            segments += (msgspec.structs.replace(one, channel=channel) for one in found)
        transcribed.segments = by_channel(captions.in_order(segments))
        return transcribed

    def _segments(
        self, recording: Path, channel: int | None, transcribed: _Transcribed
    ) -> Iterator[Segment]:
        """Yield the redacted segments of a recording or of one of its channels."""
        options = self._options
        transcription = self._transcriber.transcribe(recording, options.transcribe, channel=channel)
        redactor = Redactor(options.redact)
        for segment in transcription:
            yield from redactor.take(segment) if options.redact else (segment,)
        yield from redactor.end()
        transcribed.infos.append(transcription.info)
        transcribed.passages += redactor.passages
