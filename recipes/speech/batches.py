"""A training step's batches: audio, the text to transcribe, and the letters to spell.

Depends on numpy only, so that other processes can make them; a function of the seed and the step.
"""

from __future__ import annotations

import multiprocessing
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from multiprocessing.queues import Queue
from queue import Empty
from typing import Final

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from galley.speech.features import LogMel

from ..assistant.tokenizer import token_id
from . import line
from .line import Line
from .pool import Pool, Utterance
from .tokenizer import (
    END,
    LANGUAGE,
    NO_SPEECH,
    NO_TIMESTAMPS,
    PREVIOUS,
    START,
    TASK,
    time_id,
)

ALPHABET: Final = " 'abcdefghijklmnopqrstuvwxyz"
"""Letters that the encoder spells during training; 0 is the blank, letter i is i + 1."""

_TIME_WEIGHT: Final = 0.3
_TIME_GRAIN: Final = 0.1
"""Seconds to which the times in training are rounded; finer differences are inaudible."""
_SILENCE_RANGE: Final = 2.0
_SILENCE_FLOOR: Final = -1.5
"""Features lie within this range of an encoder input's loudest, and not below this floor (`LogMel`)."""


@dataclass(frozen=True, slots=True)
class Draw:
    """Parameters of a step's batches, in addition to the pool's seed.

    Attributes:
        seconds: seconds of audio in a step, without padding.
        group_seconds: padded audio computed at once; bounds memory, not the result.
        short_steps: the length limit of utterances grows to the longest input's in this many steps.
        mask_from: the step from which bands and frames are masked.
        augment: False uses the same line for an utterance every time: for overfitting tests on few.
    """

    seconds: float = 160.0
    group_seconds: float = 80.0
    short_steps: int = 500
    mask_from: int = 800
    augment: bool = True


@dataclass(frozen=True, slots=True)
class Row:
    """One encoder input: features `[frames, mels]`, decoder input and targets `[tokens]`, letters."""

    features: NDArray[np.float32]
    ids: list[int]
    targets: list[int]
    weights: list[float]
    letters: list[int]


@dataclass(frozen=True, slots=True)
class Batch:
    """Right-padded rows of similar length.

    `features` `[rows, frames, mels]`; `ids`, `targets`, `weights` `[rows, tokens]`; `frames` are the
    rows' own; `letters` lie one after another, `letter_counts` of them to a row.
    """

    features: NDArray[np.float32]
    frames: NDArray[np.int64]
    ids: NDArray[np.int64]
    targets: NDArray[np.int64]
    weights: NDArray[np.float32]
    letters: NDArray[np.int64]
    letter_counts: NDArray[np.int64]


class Maker:
    """Makes batches from a pool; one for each process."""

    def __init__(self, pool: Pool, tokenizer: Tokenizer, draw: Draw, window_seconds: int) -> None:
        self.pool, self.tokenizer, self.draw = pool, tokenizer, draw
        self.window_frames = 100 * window_seconds
        self._mels = LogMel(chunk_seconds=window_seconds, pad=False)
        found = [(u, s, p) for s, shard in enumerate(pool.utterances) for p, u in enumerate(shard)]
        found.sort(key=lambda item: item[0].samples)
        self._places = [(shard, place) for _, shard, place in found]
        self._seconds = np.array([utterance.seconds for utterance, _, _ in found])
        names = (START, LANGUAGE, TASK, NO_TIMESTAMPS, NO_SPEECH, PREVIOUS, END)
        self._id = {name: token_id(tokenizer, name) for name in names}

    def batches(self, step: int) -> list[Batch]:
        """Return the batches of a step, short utterances first in the order of training."""
        rng = np.random.default_rng((self.pool.seed, step))
        longest = 1.5 + 6.5 * min(1.0, (step + 1) / self.draw.short_steps)
        eligible = max(1, int(np.searchsorted(self._seconds, longest, side="right")))
        rows: list[Row] = []
        seconds = 0.0
        while seconds < self.draw.seconds:
            row = self._row(int(rng.integers(eligible)), rng, masked=step >= self.draw.mask_from)
            if row is not None:
                rows.append(row)
                seconds += len(row.features) / 100
        return [self._padded(group, rng) for group in self._groups(rows)]

    def _row(self, number: int, rng: np.random.Generator, *, masked: bool) -> Row | None:
        shard, place = self._places[number]
        utterance = self.pool.utterances[shard][place]
        speech = self.pool.speech(shard, place)
        choices = random.Random(int(rng.integers(2**31)))
        if not self.draw.augment:
            way = line.draw(np.random.default_rng(number))
        else:
            way = line.draw(rng, warp=0.1)
            if rng.random() < 0.03:
                utterance, speech = Utterance(()), speech[:0]
                way = line.draw(rng)
                way = Line(
                    way.snr, way.color, way.gain, 4 * way.before, 8 * way.after, 1.0, way.seed
                )
        samples = line.over(speech, way)
        if len(samples) > self._mels.chunk_samples:
            return None
        features = self._mels(samples)
        if masked and self.draw.augment:
            _mask(features, rng)
        return self._labeled(features, utterance, way, choices)

    def _labeled(
        self, features: NDArray[np.float32], utterance: Utterance, way: Line, rng: random.Random
    ) -> Row:
        """Return input and targets of the decoder, in one of the prompt forms it must support."""
        known = self._id
        named, timed = rng.random() < 0.65, rng.random() < 0.3
        prompt = [known[START]]
        if named:
            prompt += [known[LANGUAGE], known[TASK]]
        if not timed:
            prompt.append(known[NO_TIMESTAMPS])
        body, body_weights = self._body(utterance, way, timed=timed)
        before = self._earlier(rng) if self.draw.augment and rng.random() < 0.1 else []
        ids = [*before, *prompt, *body]
        targets = [*ids[1:], known[END]]
        weights = [*[0.0] * (len(before) + len(prompt) - 1), *body_weights, 1.0]
        start = len(before)  # the place of <|startoftranscript|>
        if not utterance.sentences:
            targets[start], weights[start] = known[NO_SPEECH], 1.0
        elif named:
            weights[start] = 1.0
        letters = [ALPHABET.index(letter) + 1 for letter in utterance.letters]
        return Row(features, ids, targets, weights, letters)

    def _body(
        self, utterance: Utterance, way: Line, *, timed: bool
    ) -> tuple[list[int], list[float]]:
        if not timed:
            ids = self._text(utterance.written)
            return ids, [1.0] * len(ids)
        ids, weights = [], []
        for said in utterance.sentences:
            text = self._text(f" {said.written}" if ids else said.written)
            start, end = (
                time_id(self.tokenizer, _TIME_GRAIN * round(line.arrival(at, way) / _TIME_GRAIN))
                for at in (said.start, said.end)
            )
            ids += [start, *text, end]
            weights += [_TIME_WEIGHT, *[1.0] * len(text), _TIME_WEIGHT]
        return ids, weights

    def _earlier(self, rng: random.Random) -> list[int]:
        """Return another utterance's text as the prompt of previous text."""
        shard, place = rng.choice(self._places)
        return [self._id[PREVIOUS], *self._text(self.pool.utterances[shard][place].written)]

    def _text(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def _groups(self, rows: list[Row]) -> list[list[Row]]:
        groups: list[list[Row]] = [[]]
        for row in sorted(rows, key=lambda row: len(row.features)):
            group, frames = groups[-1], len(row.features)
            full = (len(group) + 1) * frames > 100 * self.draw.group_seconds
            if group and (full or frames > 1.3 * len(group[0].features)):
                groups.append([])
            groups[-1].append(row)
        return groups

    def _padded(self, group: list[Row], rng: np.random.Generator) -> Batch:
        """Return one batch; sometimes padded to the longest input, as peers always do."""
        frames = np.array([len(row.features) for row in group])
        whole = self.draw.augment and rng.random() < 0.1
        length = self.window_frames if whole else int(frames.max())
        width = max(len(row.ids) for row in group)
        features = np.zeros((len(group), length, group[0].features.shape[1]), np.float32)
        ids = np.full((len(group), width), self._id[END])
        targets, weights = ids.copy(), np.zeros((len(group), width), np.float32)
        for place, row in enumerate(group):
            # Whisper's own features pad with silence, faster-whisper with zeros.
            silence = max(float(row.features.max()) - _SILENCE_RANGE, _SILENCE_FLOOR)
            features[place] = 0.0 if rng.random() < 0.4 else silence
            features[place, : frames[place]] = row.features
            ids[place, : len(row.ids)] = row.ids
            targets[place, : len(row.ids)] = row.targets
            weights[place, : len(row.ids)] = row.weights
        letters = [row.letters for row in group]
        counts = np.array([len(spelled) for spelled in letters])
        together = np.array([letter for spelled in letters for letter in spelled], np.int64)
        return Batch(features, frames, ids, targets, weights, together, counts)


def _mask(features: NDArray[np.float32], rng: np.random.Generator) -> None:
    """Mask up to two bands and two time spans, as SpecAugment does (arXiv:1904.08779), but lightly."""
    mean = float(features.mean())
    for _ in range(int(rng.integers(3))):
        size = int(rng.integers(1, 9))
        begin = int(rng.integers(0, max(1, features.shape[1] - size)))
        features[:, begin : begin + size] = mean
    for _ in range(int(rng.integers(3))):
        size = int(rng.integers(1, 9))
        begin = int(rng.integers(0, max(1, len(features) - size)))
        features[begin : begin + size] = mean


def feed(maker: Callable[[], Maker], steps: range, workers: int) -> Iterator[list[Batch]]:
    """Yield the batches of consecutive steps, prepared by other processes (0: by this one).

    The batches do not depend on which process makes them.
    """
    if workers == 0:
        made = maker()
        yield from (made.batches(step) for step in steps)
        return
    context = multiprocessing.get_context("spawn")
    queues: list[Queue[list[Batch]]] = [context.Queue(2) for _ in range(workers)]
    processes = [
        context.Process(target=_work, args=(maker, steps[place::workers], queue), daemon=True)
        for place, queue in enumerate(queues)
    ]
    for process in processes:
        process.start()
    try:
        for turn in range(len(steps)):
            yield _taken(queues[turn % workers], processes[turn % workers])
    finally:
        for process in processes:
            process.terminate()


def _work(maker: Callable[[], Maker], steps: range, queue: Queue[list[Batch]]) -> None:
    made = maker()
    for step in steps:
        queue.put(made.batches(step))


def _taken(queue: Queue[list[Batch]], process: BaseProcess) -> list[Batch]:
    """Return the next batches of a process.

    Raises:
        RuntimeError: the process died.
    """
    while True:
        try:
            return queue.get(timeout=5)
        except Empty:
            if not process.is_alive():
                raise RuntimeError(
                    "a process that makes batches died; its error is above"
                ) from None
