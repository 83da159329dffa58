"""Find the attention heads that follow the speech: `python -m recipes.speech.heads [DIR]`.

Word times come from these heads (`alignment_heads` in generation_config.json). They are chosen by
how well they find where sentences begin and end, which is known for synthesized speech.
"""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from galley.demo.speech import SPEECH_MODEL_DIR
from galley.formats.json_file import read_json
from galley.llm.local import LocalEngine
from galley.service.speech_requests import align_request
from galley.settings.engine import EngineSettings
from galley.speech.alignment import affinity, first_rows
from galley.speech.features import LogMel
from galley.speech.tokens import SpeechTokens
from galley.text.tokenizer import Tokenizer
from galley.types.audio import Alignment, EncoderInput

from ..assistant.wordings import TRAINING
from ..training import write_json
from . import line
from .pool import speak, texts
from .sentences import SpokenSource
from .voices import Samples, draw

ITEMS: Final = 60
_SEED: Final = 23
_WORTH: Final = 0.98
"""A head is kept if it reduces the error to less than this share."""
_FILE: Final = "generation_config.json"


@dataclass(frozen=True, slots=True)
class Item:
    """An utterance of several sentences, as received, with the times of each sentence in seconds."""

    samples: Samples
    sentences: tuple[tuple[str, float, float], ...]


@dataclass(frozen=True, slots=True)
class Map:
    """The attention of each head in one item.

    Attributes:
        belongs: [heads, tokens, rows] for the tokens of its text and the end: `affinity` of each head.
        bounds: (token, row where it begins), as far as known.
    """

    belongs: NDArray[np.float32]
    bounds: tuple[tuple[int, float], ...]

    def errors(self, heads: Sequence[int]) -> list[float]:
        """Return the distances in rows between the token starts that these heads find and the true ones."""
        rows = first_rows(self.belongs[list(heads)].mean(axis=0))
        return [abs(float(rows[token]) - row) for token, row in self.bounds]


def make(count: int) -> list[Item]:
    """Return utterances with pauses between their sentences.

    Raises:
        SettingsError: espeak-ng is missing.
    """
    rng, lines = random.Random(_SEED), np.random.default_rng(_SEED)
    source = SpokenSource(rng, held_out=False)
    items: list[Item] = []
    while len(items) < count:
        voice, way = draw(rng, held_out=False), line.draw(lines)
        sentences = texts(source, TRAINING, voice.speed, training=False)
        if len(sentences) > 1:
            utterance, speech = speak(sentences, voice, rng)
            times = (
                (said.written, line.arrival(said.start, way), line.arrival(said.end, way))
                for said in utterance.sentences
            )
            items.append(Item(line.over(speech, way), tuple(times)))
    return items


def look(folder: Path, items: Sequence[Item]) -> tuple[list[tuple[int, int]], list[Map]]:
    """Return all heads of the checkpoint's decoder, (layer, head), and their attention in each item."""
    config = read_json(folder / "config.json")
    layers, count = config["decoder_layers"], config["decoder_attention_heads"]
    heads = [(layer, head) for layer in range(layers) for head in range(count)]
    with tempfile.TemporaryDirectory() as name:
        copy = Path(name)
        shutil.copytree(folder, copy, dirs_exist_ok=True)
        name_heads(copy, heads)
        with LocalEngine(
            EngineSettings(model=name, dtype="float32", kv_cache_tokens=4096)
        ) as engine:
            return heads, [_map(engine, item) for item in items]


def _map(engine: LocalEngine, item: Item) -> Map:
    tokens = SpeechTokens(engine.info, Tokenizer.load(engine.folder))
    seconds = tokens.speech.max_frames / 100
    features = LogMel(tokens.speech.mels, seconds, pad=False)(item.samples)
    text: list[int] = []
    bounds: list[tuple[int, float]] = []
    for written, start, end in item.sentences:
        if text:
            bounds.append((len(text), start / tokens.row_seconds))
        spelled = tokens.tokenizer.encode_plain(f" {written}" if text else written)
        mark = tokens.tokenizer.encode_plain(written[-1])
        text += spelled
        bounds.append((len(text) - len(mark), end / tokens.row_seconds))
    prompt = tokens.alignment("en", "transcribe", text)
    encoder_input = EncoderInput(
        frames=len(features), mels=tokens.speech.mels, data=features.astype("<f4").tobytes()
    )
    request = align_request(
        prompt.ids, engine.info, request_id="heads", encoder_input=encoder_input
    )
    [found] = [output.result for output in engine.run([request])]
    assert isinstance(found, Alignment)
    weights = np.frombuffer(found.data, "<f4").reshape(found.tokens, found.heads, found.rows)
    apart = [affinity(weights[:, [head]])[prompt.start - 1 : -1] for head in range(found.heads)]
    return Map(np.stack(apart), tuple(bounds))


def choose(maps: Sequence[Map]) -> tuple[list[int], float]:
    """Select heads greedily that find the bounds best together; return them and their mean row error."""
    chosen: list[int] = []
    least = float("inf")
    others = set(range(len(maps[0].belongs)))
    while others:
        tried = {head: mean_error(maps, [*chosen, head]) for head in sorted(others)}
        best = min(tried, key=tried.__getitem__)
        if tried[best] >= _WORTH * least:
            break
        least = tried[best]
        chosen.append(best)
        others.remove(best)
    return chosen, least


def mean_error(maps: Sequence[Map], heads: Sequence[int]) -> float:
    """Return the mean row error over all bounds."""
    return float(np.mean([error for one in maps for error in one.errors(heads)]))


def name_heads(folder: Path, heads: Sequence[tuple[int, int]]) -> None:
    """Write the heads into generation_config.json of the checkpoint."""
    file = folder / _FILE
    config = read_json(file)
    file.unlink()
    write_json(file, {**config, "alignment_heads": [list(head) for head in sorted(heads)]})


def choose_heads(folder: Path) -> str:
    """Select the best heads of a checkpoint and save them; return a summary line.

    Raises:
        SettingsError: espeak-ng is missing.
    """
    heads, maps = look(folder, make(ITEMS))
    chosen, rows = choose(maps)
    name_heads(folder, [heads[place] for place in chosen])
    last = [place for place, (layer, _) in enumerate(heads) if layer == heads[-1][0]]
    named = ", ".join(f"{layer}.{head}" for layer, head in sorted(heads[p] for p in chosen))
    return (
        f"heads {named} find sentences to {20 * rows:.0f} ms; "
        f"all of the last layer to {20 * mean_error(maps, last):.0f} ms"
    )


if __name__ == "__main__":
    print(choose_heads(Path(sys.argv[1]) if len(sys.argv) > 1 else SPEECH_MODEL_DIR))
