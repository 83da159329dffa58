"""faster-whisper: CTranslate2 as faster-whisper calls it, on a checkpoint converted by its own tool."""

import time
from pathlib import Path
from typing import Any, Final

from benchmarks.peers.protocol import Peer, main
from benchmarks.peers.speech import EOS, FRAMES, PROMPT, answer

_TYPES: Final = {"int8": "int8", "float32": "float32"}


class _Model:
    def __init__(self, folder: Path, variant: str, threads: int) -> None:
        import numpy as np
        from ctranslate2 import StorageView
        from faster_whisper import WhisperModel

        model = WhisperModel(
            str(folder), device="cpu", compute_type=_TYPES[variant], cpu_threads=threads
        )
        self._model: Any = model.model
        mels = self._model.n_mels
        frames = np.random.default_rng(0).uniform(-1, 1.5, (1, mels, FRAMES)).astype("f4")
        self._features = StorageView.from_array(frames)
        self._encoded = self._model.encode(self._features)

    def encode(self, windows: int) -> list[float]:
        seconds = []
        for _ in range(windows):
            began = time.perf_counter()
            self._encoded = self._model.encode(self._features)
            seconds.append(time.perf_counter() - began)
        return seconds

    def decode(self, tokens: int, beams: int) -> list[float]:
        whole, count = self._generate(tokens, beams)
        first, one = self._generate(1, beams)
        return [(whole - first) / (count - one)]

    def transcribe(self, windows: int, tokens: int, beams: int) -> list[float]:
        # Its own defaults are 1, and 8 for its batched pipeline.
        trials = {size: self._whole(8, size, tokens, beams) for size in (1, 4, 8)}
        return [self._whole(windows, min(trials, key=trials.__getitem__), tokens, beams)]

    def _whole(self, windows: int, together: int, tokens: int, beams: int) -> float:
        """Return the seconds from ``windows`` to all texts, ``together`` at once."""
        import numpy as np
        from ctranslate2 import StorageView

        began = time.perf_counter()
        for start in range(0, windows, together):
            count = min(together, windows - start)
            features = np.repeat(np.array(self._features), count, axis=0)
            encoded = self._model.encode(StorageView.from_array(features))
            self._texts(encoded, tokens, beams, count)
        return time.perf_counter() - began

    def _generate(self, tokens: int, beams: int) -> tuple[float, int]:
        """Return the seconds and the number of generated tokens."""
        began = time.perf_counter()
        (result,) = self._texts(self._encoded, tokens, beams, 1)
        return time.perf_counter() - began, len(result.sequences_ids[0])

    def _texts(self, encoded: Any, tokens: int, beams: int, windows: int) -> list[Any]:
        texts: list[Any] = self._model.generate(
            encoded,
            [list(PROMPT)] * windows,
            beam_size=beams,
            max_length=len(PROMPT) + tokens,
            suppress_blank=False,
            suppress_tokens=[EOS],
        )
        return texts


def convert(checkpoint: Path, target: Path, variant: str) -> None:
    """Convert as ``ct2-transformers-converter --quantization`` does."""
    from ctranslate2.converters import TransformersConverter

    converter = TransformersConverter(str(checkpoint), copy_files=["tokenizer.json"])
    converter.convert(str(target), quantization=_TYPES[variant])


PEER = Peer(
    name="faster_whisper",
    variants={8: ("int8",), 32: ("float32",)},
    load=_Model,
    answer=answer,
    convert=convert,
)

if __name__ == "__main__":
    main(PEER)
