"""The held-out sets: sentences and voices that training never had.

Set 1 uses training wordings, set 2 the held-out wordings of the language model; both with names
and numbers that training never draws. The files are fixed: `python -m recipes.speech.heldout`
writes them again, byte for byte, and makes the recordings next to them. An item's audio is
made on demand (`sound`); `python -m recipes.speech.heldout DIR` makes all of it, with a
manifest for `galley eval speech`.
"""

from __future__ import annotations

import random
import re
import sys
from pathlib import Path
from typing import Final

import av
import msgspec
import numpy as np
import soxr
from av.audio.frame import AudioFrame
from av.audio.stream import AudioStream

from galley.speech.audio import SAMPLE_RATE

from ..assistant.generator import compose
from ..assistant.vocabulary import is_held_out
from ..assistant.wordings import HELD_OUT, TRAINING
from . import CALL_DIR, DATA_DIR
from .line import Line, draw, over
from .pool import speak, texts
from .sentences import SpokenSource, as_written
from .spoken import spoken
from .voices import HELD_OUT_VARIANTS, RATE, Samples, Voice
from .voices import draw as draw_voice

SETS: Final = (1, 2)
ITEMS: Final = 150
"""Items in each set."""
FORMATS: Final = {
    "1-000": "wav",
    "1-001": "flac",
    "2-000": "flac",
    "1-002": "opus",
    "2-001": "opus",
}
"""The items that are bundled as recordings."""
CALL: Final = "call"
"""A whole call of several sentences: `call.opus`, with its transcript and its ticket in `call.json`."""
_CODECS: Final = {"wav": ("wav", "pcm_s16le"), "flac": ("flac", "flac"), "opus": ("ogg", "libopus")}
_OPUS_BITS: Final = 16_000


class Call(msgspec.Struct, frozen=True):
    """The text of the recorded call, and the ticket that the language model should make of it."""

    text: str
    ticket: str


class Item(msgspec.Struct, frozen=True):
    """One held-out utterance: its transcript, its spoken form, its voice and its line."""

    name: str
    sentences: tuple[tuple[str, str], ...]
    voice: Voice
    line: Line

    @property
    def text(self) -> str:
        """Return the transcript."""
        return " ".join(written for written, _ in self.sentences)


def make(number: int) -> list[Item]:
    """Return held-out set 1 or 2, without synthesizing audio."""
    rng = random.Random(9000 + number)
    lines = np.random.default_rng(9000 + number)
    source = SpokenSource(rng, held_out=True)
    wordings = TRAINING if number == 1 else HELD_OUT
    items: list[Item] = []
    while len(items) < ITEMS:
        voice, way = draw_voice(rng, held_out=True), draw(lines)
        sentences = tuple(texts(source, wordings, voice.speed, training=False))
        items.append(Item(f"{number}-{len(items):03d}", sentences, voice, way))
    return items


def sound(item: Item) -> Samples:
    """Synthesize the item: float32 `[samples]` at 16 kHz, the same for the same espeak-ng.

    Raises:
        SettingsError: espeak-ng is missing.
    """
    _, speech = speak(item.sentences, item.voice, random.Random(item.name))
    return over(speech, item.line)


def path(number: int, folder: Path = DATA_DIR) -> Path:
    """Return the file of a set."""
    return folder / f"heldout_{number}.jsonl"


def read(number: int, folder: Path = DATA_DIR) -> list[Item]:
    """Read a set from its file."""
    lines = path(number, folder).read_bytes().splitlines()
    return [msgspec.json.decode(line, type=Item) for line in lines]


def write(folder: Path = DATA_DIR) -> None:
    """Write both sets, one JSON object per line."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in SETS:
        lines = [msgspec.json.encode(item) + b"\n" for item in make(number)]
        path(number, folder).write_bytes(b"".join(lines))


def violations(items: list[Item]) -> list[str]:
    """Return violations of the rule that training had neither these sentences nor these voices."""
    found = [
        f"{item.name}: training may say {written!r}"
        for item in items
        for written, _ in item.sentences
        if not is_held_out(written)
    ]
    return found + [
        f"{item.name}: training uses the voice {item.voice.variant}"
        for item in items
        if item.voice.variant not in HELD_OUT_VARIANTS
    ]


def record(folder: Path = DATA_DIR, call_folder: Path = CALL_DIR) -> None:
    """Write the recordings: some items into `folder`, a whole call and its text into `call_folder`.

    Raises:
        SettingsError: espeak-ng is missing.
    """
    items = {item.name: item for number in SETS for item in make(number)}
    for name, ending in FORMATS.items():
        _save(sound(items[name]), folder / f"{name}.{ending}")
    call, samples = _call()
    _save(samples, call_folder / f"{CALL}.opus")
    (call_folder / f"{CALL}.json").write_bytes(
        msgspec.json.format(msgspec.json.encode(call)) + b"\n"
    )


def _call() -> tuple[Call, Samples]:
    rng = random.Random(9100)
    text, made = compose(SpokenSource(rng, held_out=True), TRAINING, "refund")
    written = re.split(r"(?<=[.?]) ", as_written(text))
    voice = draw_voice(rng, held_out=True)
    pairs = [(sentence, spoken(sentence, rng)) for sentence in written]
    _, speech = speak(pairs, voice, rng, pauses=(0.6, 1.2))
    return Call(" ".join(written), made.ticket.json()), over(
        speech, draw(np.random.default_rng(9100))
    )


def _save(samples: Samples, file: Path) -> None:
    """Write 16-kHz samples as a telephone recording: 8 kHz, in the format of the file's ending."""
    container, codec = _CODECS[file.suffix[1:]]
    narrow = soxr.resample(samples, SAMPLE_RATE, RATE)
    whole = np.round(np.clip(narrow, -1, 1) * 32767).astype(np.int16)
    with av.open(str(file), "w", format=container) as out:
        stream = out.add_stream(codec, rate=RATE)
        assert isinstance(stream, AudioStream)
        stream.layout = "mono"
        if codec == "libopus":
            stream.bit_rate = _OPUS_BITS
        frame = AudioFrame.from_ndarray(whole[None], format="s16", layout="mono")
        frame.sample_rate = RATE
        for packet in (*stream.encode(frame), *stream.encode(None)):
            out.mux(packet)


def export(folder: Path) -> Path:
    """Write the audio of every item, and a manifest for `galley eval speech`.

    Raises:
        SettingsError: espeak-ng is missing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for item in (item for number in SETS for item in read(number)):
        _save(sound(item), folder / f"{item.name}.wav")
        lines.append(msgspec.json.encode({"audio": f"{item.name}.wav", "text": item.text}) + b"\n")
    manifest = folder / "manifest.jsonl"
    manifest.write_bytes(b"".join(lines))
    return manifest


if __name__ == "__main__":
    if len(sys.argv) == 2:
        print(f"wrote {export(Path(sys.argv[1]))}")
        sys.exit()
    write()
    record()
    for number in SETS:
        problems = violations(read(number))
        print(f"set {number}: {len(read(number))} items, {len(problems)} violations")
        print("\n".join(problems[:20]))
