"""What transcribing needs of a model beside its engine, loaded once for any number of recordings."""

from pathlib import Path

from galley.speech.audio import Recording
from galley.speech.features import LogMel
from galley.speech.options import TranscribeOptions
from galley.speech.source import WindowSource
from galley.speech.tokens import SpeechTokens
from galley.speech.vad import SpeechDetector
from galley.text.tokenizer import Tokenizer
from galley.types import ModelInfo


class SpeechModel:
    """Tokens, features and the speech detector.

    Raises:
        ModelError: it is a text model, or one of its files is wrong.
    """

    def __init__(self, info: ModelInfo, tokenizer: Tokenizer) -> None:
        self.tokens = SpeechTokens(info, tokenizer)
        self._features = LogMel.of_model(Path(info.path), self.tokens.speech)
        self._detector = SpeechDetector()

    def windows(self, recording: Recording, options: TranscribeOptions) -> WindowSource:
        """The recording's windows, which close it."""
        return WindowSource(recording, self._features, options, self._detector)
