"""Galley itself on an unconverted Whisper checkpoint: the encoder alone, then requests to the engine."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.peers.protocol import Peer, main
from benchmarks.peers.speech import FRAMES, PROMPT, answer

if TYPE_CHECKING:
    from galley.types import EngineRequest
    from galley.types.audio import EncoderInput

TOGETHER: Final = 8
"""Windows in flight at once, as many as in `galley transcribe`."""


class _Model:
    def __init__(self, folder: Path, variant: str, threads: int) -> None:
        import numpy as np

        from galley.llm.local import LocalEngine
        from galley.ops import background
        from galley.settings.engine import EngineSettings
        from galley.types.audio import EncoderInput

        weight_dtype, _, kv_dtype = variant.partition(" kv ")
        choices: dict[str, Any] = {"weight_dtype": weight_dtype, "kv_dtype": kv_dtype or "auto"}
        self._engine = LocalEngine(
            EngineSettings(model=str(folder), executor="cpu", threads=threads, **choices)
        )
        background.finish()
        speech = self._engine.info.speech
        assert speech is not None
        self._frames = np.random.default_rng(0).uniform(-1, 1.5, (FRAMES, speech.mels)).astype("f4")
        self._made = 1
        self._window = EncoderInput(frames=FRAMES, mels=speech.mels, data=self._frames.tobytes())

    def encode(self, windows: int) -> list[float]:
        import numpy as np

        from galley.engine.engine import Engine
        from galley.ops.batch import EncoderBatch
        from galley.ops.executor import encode

        # The engine's own executor; no request uses the blocks now.
        engine = self._engine.engine
        assert isinstance(engine, Engine)
        executor = engine._executor
        table = np.arange(1, 1 + -(-FRAMES // 2 // 16))
        seconds = []
        for _ in range(windows):
            began = time.perf_counter()
            encode(executor, EncoderBatch(self._frames, np.array([0, FRAMES]), (table,)))
            seconds.append(time.perf_counter() - began)
        return seconds

    def decode(self, tokens: int, beams: int) -> list[float]:
        # A beam search delivers everything at its end, so the time before the second token is subtracted.
        self._seconds(1, beams)  # the window is encoded once and stays cached
        return [(self._seconds(tokens, beams) - self._seconds(1, beams)) / (tokens - 1)]

    def transcribe(self, windows: int, tokens: int, beams: int) -> list[float]:
        from galley.types.audio import EncoderInput

        mels = self._frames.shape[1]
        waiting = []
        # Each window has different bytes in each round: the engine caches what it has encoded.
        for number in range(self._made, self._made + windows):
            data = (self._frames + 1e-3 * number).astype("f4").tobytes()
            window = EncoderInput(frames=FRAMES, mels=mels, data=data)
            waiting += self._request(window, tokens, beams, str(number))
        self._made += windows
        began = time.perf_counter()
        run = self._engine.run(waiting[:TOGETHER])
        del waiting[:TOGETHER]
        for output in run:
            if output.finish_reason is not None and waiting:
                run.add([waiting.pop(0)])
        return [time.perf_counter() - began]

    def _seconds(self, tokens: int, beams: int) -> float:
        request = self._request(self._window, tokens, beams, "bench")
        began = time.perf_counter()
        for _ in self._engine.run(request):
            pass
        return time.perf_counter() - began

    def _request(
        self, window: "EncoderInput", tokens: int, beams: int, name: str
    ) -> "list[EngineRequest]":
        from galley import SamplingParams
        from galley.service.speech_requests import transcribe_requests

        params = SamplingParams(
            temperature=0.0, max_tokens=tokens, ignore_eos=True, num_beams=beams
        )
        return transcribe_requests(
            list(PROMPT), params, self._engine.info, request_id=name, encoder_input=window
        )


PEER = Peer(
    name="galley_speech",
    variants={8: ("int8", "int8 kv bfloat16", "int8 kv float32"), 16: ("bf16",), 32: ("float32",)},
    load=_Model,
    answer=answer,
)

if __name__ == "__main__":
    main(PEER)
