"""VITS voices in ONNX, as Piper publishes them, computed in parts that can be heard one after another.

A VITS model (Kim et al., arXiv:2106.06103) is three networks in a row: the encoder makes a latent frame
for every few milliseconds of speech, the flow transforms the frames, and the decoder makes samples of
them. The last two are convolutions, so a frame's samples depend only on the frames around it. The graph
is cut between the three: the encoder runs once for a text, the others for some frames at a time, with a
margin of frames around them whose samples are dropped. A trial at load finds out whether this yields
what the whole graph does; otherwise, and for graphs of another form, the model is computed whole.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from galley.errors import CheckpointError, UnsupportedModel
from galley.runtimes.onnx import import_onnxruntime, session_options
from galley.runtimes.onnx_parts import Graph
from galley.settings.engine_choice import VOICE_ENGINE

if TYPE_CHECKING:
    Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

log = logging.getLogger("galley.runtimes")

_DECODER: Final = "dec.conv_pre.weight"
_FLOW: Final = "flow.flows."
_FLOW_MARGIN: Final = 32
_DECODER_MARGIN: Final = 14
"""Frames on both sides of a frame that can change its result."""

_FIRST_FRAMES: Final = 16
_MOST_FRAMES: Final = 128
"""Frames of a text's first part, and of its largest; each part is twice as long as the one before."""

_FLOW_FRAMES: Final = 256
"""Frames that the flow transforms at a time after the first part, which needs fewer."""

_SEED: Final = "galley_seed"
"""Input of the seed that is added to the graph."""

_NOISE: Final = 2**18 + 3
"""Numbers of the table of noise: a megabyte, and a sentence's worth is drawn at one of as many places."""

_TRIAL_FRAMES: Final = 360
_TOLERANCE: Final = 1e-4
"""Greatest difference of a sample, of at most 1, between the parts and the whole."""


@dataclass(frozen=True)
class Scales:
    """How a voice varies.

    Attributes:
        noise: of the sound.
        length: of the duration; greater is slower.
        duration_noise: of the durations of phonemes.
    """

    noise: float = 0.667
    length: float = 1.0
    duration_noise: float = 0.8


class VitsModel:
    """Sessions of onnxruntime for a VITS model. For one thread.

    Attributes:
        streams: whether a text's audio comes in parts.
        has_speakers: whether the model takes the number of a speaker.
    """

    def __init__(self, file: Path, threads: int) -> None:
        """Load the model, and try it.

        Raises:
            CheckpointError: onnxruntime cannot read it.
            UnsupportedModel: its inputs are not those of a Piper voice.
            SettingsError: onnx or onnxruntime is not installed.
        """
        self._ort = import_onnxruntime(VOICE_ENGINE, "voice")
        self._threads = threads
        graph = Graph.read(file)
        _check_inputs(file, graph.inputs)
        table = np.random.default_rng(0).standard_normal(_NOISE, np.float32)
        graph = graph.with_seed(_SEED, table)
        self.has_speakers = "sid" in graph.inputs
        self._whole: Any = None
        self._stages: list[_Stage] = []
        self.streams = self._divides(graph)
        if self.streams:
            return
        self._stages = []
        log.info(
            "%s: the audio of a sentence is sent as a whole, because the graph cannot be divided",
            file,
        )
        try:
            self._whole = self._session(graph.whole())
        except Exception as error:  # onnxruntime's errors have no common base
            raise CheckpointError(f"onnxruntime cannot run it: {error}", file=str(file)) from error

    def speak(
        self, ids: Sequence[int], scales: Scales, speaker: int = 0, *, seed: int
    ) -> "Iterator[tuple[Array, bool]]":
        """Yield the samples of a text, float32 from -1 to 1, in parts, and whether each is the last.

        Args:
            ids: phonemes, as the model numbers them.
            scales: how the voice varies.
            speaker: number of the speaker, of a model that has several.
            seed: of the noise; with the same one, a text is spoken the same way again.
        """
        given: dict[str, Array] = {
            "input": np.array([ids], np.int64),
            "input_lengths": np.array([len(ids)], np.int64),
            "scales": np.array([scales.noise, scales.length, scales.duration_noise], np.float32),
            _SEED: np.array(seed % _NOISE, np.int64),
        }
        if self.has_speakers:
            given["sid"] = np.array([speaker], np.int64)
        if self._whole is not None:
            yield self._whole.run(None, given)[0].reshape(-1), True
            return
        encoder, flow, decoder = self._stages
        frames = encoder.run(given)
        count = frames[flow.axis].shape[-1]
        latent, begin, size = _Latent(flow, decoder.axis, frames, count), 0, _FIRST_FRAMES
        while begin < count:
            end = min(count, begin + size)
            yield _samples(decoder, frames, latent, begin, end), end == count
            begin, size = end, min(_MOST_FRAMES, 2 * size)

    def _divides(self, graph: Graph) -> bool:
        """Divide the graph into its stages; return whether they can be run in parts."""
        try:
            self._stages = self._cut(graph)
            return bool(self._stages) and self._agrees()
        except Exception as error:  # onnxruntime's errors have no common base
            log.info("a part of the voice's graph cannot be run on its own: %s", error)
            return False

    def _cut(self, graph: Graph) -> "list[_Stage]":
        """Return the three networks; none if the graph is not that of a VITS model."""
        before_decoder = graph.input_of_weight(_DECODER)
        before_flow = graph.first_input_of(_FLOW)
        if before_decoder is None or before_flow is None:
            return []
        decoder, of_decoder = graph.after([before_decoder], graph.outputs)
        flow, of_flow = graph.after([before_flow], of_decoder)
        encoder, of_encoder = graph.after(graph.inputs, [*of_flow, *of_decoder], stop=before_flow)
        if not set(of_encoder) <= set(graph.inputs):
            return []
        wanted = [*dict.fromkeys([*of_flow, *(n for n in of_decoder if n != before_decoder)])]
        return [
            _Stage(self._session(graph.part(encoder, graph.inputs, wanted)), wanted, before_flow),
            _Stage(
                self._session(graph.part(flow, of_flow, [before_decoder])),
                [before_decoder],
                before_flow,
            ),
            _Stage(
                self._session(graph.part(decoder, of_decoder, graph.outputs)),
                list(graph.outputs),
                before_decoder,
            ),
        ]

    def _agrees(self) -> bool:
        """Return whether parts of random frames yield the samples of all of them."""
        encoder, flow, decoder = self._stages
        given: dict[str, Array] = {
            "input": np.ones([1, 4], np.int64),
            "input_lengths": np.array([4], np.int64),
            "scales": np.array([0, 1, 0], np.float32),
            _SEED: np.array(0, np.int64),
        }
        if self.has_speakers:
            given["sid"] = np.zeros(1, np.int64)
        frames = encoder.run(given)
        count = frames[flow.axis].shape[-1]
        noise = np.random.default_rng(0)
        for name, value in frames.items():
            if value.ndim == 3 and value.shape[-1] == count and value.dtype == np.float32:
                wide = noise.standard_normal((*value.shape[:2], _TRIAL_FRAMES), np.float32)
                # A mask, which has one channel, is all ones: there is one text.
                frames[name] = wide if value.shape[1] > 1 else np.ones_like(wide)
        latent = _Latent(flow, decoder.axis, frames, _TRIAL_FRAMES)
        ends = [0, _FIRST_FRAMES, 3 * _FIRST_FRAMES, _TRIAL_FRAMES]
        parts = [_samples(decoder, frames, latent, begin, end) for begin, end in pairwise(ends)]
        whole = decoder.run({**frames, **flow.run(frames)})[decoder.outputs[0]].reshape(-1)
        joined = np.concatenate(parts)
        return joined.shape == whole.shape and bool(np.abs(joined - whole).max() < _TOLERANCE)

    def _session(self, model: bytes) -> Any:
        options = session_options(self._ort, self._threads)
        return self._ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


@dataclass(frozen=True)
class _Stage:
    """One of the three networks.

    Attributes:
        outputs: names of its outputs.
        axis: name of the input whose last axis is the frames.
    """

    session: Any
    outputs: Sequence[str]
    axis: str

    def run(self, values: "Mapping[str, Array]") -> "dict[str, Array]":
        """Compute the outputs from those of the values that are inputs."""
        wanted = {one.name: values[one.name] for one in self.session.get_inputs()}
        return dict(zip(self.outputs, self.session.run(self.outputs, wanted), strict=True))


class _Latent:
    """The frames of one text after the flow, computed as the decoder gets to them."""

    def __init__(self, flow: _Stage, name: str, frames: "Mapping[str, Array]", count: int) -> None:
        """Compute nothing yet.

        Args:
            flow: the network.
            name: name of its output.
            frames: its inputs, with ``count`` frames.
            count: the number of frames.
        """
        self._flow, self._name, self._frames = flow, name, frames
        self.count = count
        self._blocks: list[Array] = []
        self._have = 0

    def between(self, begin: int, end: int) -> "Array":
        """Return the frames from ``begin`` to ``end``, [1, channels, frames]."""
        while self._have < end:
            first = self._have
            over = min(self.count, max(end, first + _FLOW_FRAMES) if first else end)
            outer = max(0, first - _FLOW_MARGIN)
            given = _cropped(self._frames, self.count, outer, min(self.count, over + _FLOW_MARGIN))
            made = self._flow.run(given)[self._name]
            self._blocks.append(made[..., first - outer : over - outer])
            self._have = over
        if len(self._blocks) > 1:
            self._blocks = [np.concatenate(self._blocks, axis=-1)]
        return np.ascontiguousarray(self._blocks[0][..., begin:end])


def _samples(
    decoder: _Stage, frames: "Mapping[str, Array]", latent: _Latent, begin: int, end: int
) -> "Array":
    """Return the samples of the frames from ``begin`` to ``end``."""
    count = latent.count
    first, last = max(0, begin - _DECODER_MARGIN), min(count, end + _DECODER_MARGIN)
    given = {**_cropped(frames, count, first, last), decoder.axis: latent.between(first, last)}
    samples: Array = decoder.run(given)[decoder.outputs[0]].reshape(-1)
    hop = len(samples) // (last - first)
    return samples[(begin - first) * hop : (end - first) * hop]


def _cropped(frames: "Mapping[str, Array]", count: int, begin: int, end: int) -> "dict[str, Array]":
    """Return the values with the frames from ``begin`` to ``end``; those without frames are unchanged."""
    return {
        name: np.ascontiguousarray(value[..., begin:end]) if value.shape[-1] == count else value
        for name, value in frames.items()
    }


def _check_inputs(file: Path, inputs: Sequence[str]) -> None:
    needed = {"input", "input_lengths", "scales"}
    if not needed <= set(inputs) <= needed | {"sid"}:
        raise UnsupportedModel(
            f"{file}: a Piper voice has the inputs input, input_lengths, scales and perhaps sid, and this "
            f"model has {', '.join(inputs)}"
        )
