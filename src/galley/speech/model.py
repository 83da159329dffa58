"""The objects that transcription needs in addition to the engine, shared by all recordings."""

from pathlib import Path

from galley.speech.chunk_source import ChunkSource
from galley.speech.decoder import Audio
from galley.speech.features import LogMel
from galley.speech.live import LiveSession
from galley.speech.options import LiveOptions, TranscribeOptions
from galley.speech.tokens import SpeechTokens
from galley.speech.vad import Leveled, SpeechDetector
from galley.text.tokenizer import Tokenizer
from galley.types.model_info import ModelInfo


class SpeechModel:
    """A speech model's special tokens, feature extraction and speech detector.

    Raises:
        ModelError: the model is a text model, or one of its files is wrong.
    """

    def __init__(self, info: ModelInfo, tokenizer: Tokenizer) -> None:
        self.tokens = SpeechTokens(info, tokenizer)
        self._features = LogMel.of_model(Path(info.path), self.tokens.speech)
        self._detector = SpeechDetector()

    @property
    def pads(self) -> bool:
        """Whether the model's encoder inputs are padded to one length."""
        return self._features.pads

    def chunks(self, recording: Audio, options: TranscribeOptions) -> ChunkSource:
        """Return the source of the recording's chunks; closing it closes the recording."""
        return ChunkSource(recording, self._features, options, self._detector)

    def live(self, options: LiveOptions, request_id: str, *, cache_salt: str = "") -> LiveSession:
        """Return a new live session. Raises RequestError if the model does not support the language."""
        detector = Leveled(self._detector.stream())
        return LiveSession(
            self.tokens, self._features, detector, options, request_id, cache_salt=cache_salt
        )
