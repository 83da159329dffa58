"""The loss of each part of a model when it alone is quantized, and the choice of a scheme for each part."""

import hashlib
import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Final, TypeAlias

import numpy as np

from galley.calibration import store
from galley.calibration.layerwise import Layerwise
from galley.calibration.matrices import block_of
from galley.calibration.measures import Divergence, following
from galley.calibration.quantize import CORRECTING
from galley.calibration.rounding import trials_of
from galley.engine.read_model import Model
from galley.errors import SettingsError
from galley.formats.values import as_dense, dequantize, to_float32
from galley.formats.weights import (
    DENSE_KINDS,
    WEIGHT_TYPES,
    DenseWeight,
    Floats,
    IntWeight,
    Weight,
    WeightKind,
)
from galley.ops.executor import ExecutorFactory
from galley.quant.gptq import corrected, factor_of
from galley.quant.grid import Scheme

OnPart: TypeAlias = Callable[[str], None]

_SCALE_BYTES: Final = 2


@dataclass(frozen=True)
class Choice:
    """A possible scheme of a part.

    Attributes:
        scheme: how it is quantized; None: it stays as it is.
        bytes: of its tensors in the file.
        kl: mean divergence of the whole model in nats when only this part has the scheme.
    """

    scheme: Scheme | None
    bytes: int
    kl: float


@dataclass(frozen=True)
class Part:
    """Linear layers that read the same inputs; they share a weight type, for kernels compute them as one.

    Attributes:
        names: of their weights.
        choices: the smallest first; the last loses nothing.
    """

    names: tuple[str, ...]
    choices: tuple[Choice, ...]


def parts_of(
    model: Model,
    factory: ExecutorFactory,
    windows: Sequence[Sequence[int]],
    names: Sequence[str],
    schemes: Sequence[Scheme],
    on_part: OnPart = lambda name: None,
    *,
    method: str = "mse",
    calibration: Sequence[Sequence[int]] = (),
) -> list[Part]:
    """Quantize one part at a time as a method would, and measure the whole model.

    The loss of plain rounding predicts little of GPTQ's loss: GPTQ corrects half of one part's error and
    nearly all of another's, and lets the later layers of the same block correct most of the rest. The whole
    model is run with the scheme of a part that loses most; the losses of the others follow from the squared
    errors of the part's outputs, for a small divergence is proportional to these. Results are kept on disk.

    Args:
        model: with dense weights.
        factory: of the executor that runs it.
        windows: texts to measure on.
        names: weights of linear layers that may be quantized.
        schemes: their possible schemes.
        on_part: called with each part that has been measured.
        method: of a plan.
        calibration: other texts, which gptq uses; if there are none, it uses those to measure on.
    """
    known = ["by errors, corrected", model.checkpoint.state(), windows, sorted(names)]
    known += [[astuple(scheme) for scheme in schemes]]
    if method == "gptq":
        known += [method, calibration]
    digest = hashlib.sha256(json.dumps(known).encode()).hexdigest()[:32]
    kept = store.get(digest, list[Part])
    if kept is None:
        measure = _Measure(model, factory, windows)
        seen = Layerwise(
            model.program, model.weights, calibration or windows, factory, model.options
        )
        kept = list(_measured(measure, seen, names, schemes, method, on_part))
        store.put(digest, f"sensitivity of {model.checkpoint.folder}", kept)
    return kept


class _Measure:
    """Measures a model's loss when some of its weights are replaced.

    Attributes:
        model: the model.
        run: of the texts to measure on, with the model's own weights; as far as it was advanced.
    """

    def __init__(
        self, model: Model, factory: ExecutorFactory, windows: Sequence[Sequence[int]]
    ) -> None:
        whole = Layerwise(model.program, model.weights, windows, factory, model.options)
        self.model, self.run = model, whole.fork()
        whole.advance(whole.kept[-1])
        self._base = [logits.copy() for _, logits in whole.logits()]
        self._after = following(windows)

    def loss(self, weights: Sequence[Weight]) -> float:
        """Return the mean divergence with these weights in the rest of the run."""
        changed = self.run.rest()
        for weight in weights:
            changed.replace(weight)
        divergence = Divergence()
        for p, (first, q) in zip(self._base, changed.logits(), strict=True):
            divergence.add(p, q, self._after[first : first + len(p)])
        return divergence.loss().kl


def _measured(
    measure: _Measure,
    seen: Layerwise,
    names: Sequence[str],
    schemes: Sequence[Scheme],
    method: str,
    on_part: OnPart,
) -> Iterator[Part]:
    model, run = measure.model, measure.run
    chosen: dict[int, tuple[str, ...]] = {}
    for buffer in run.kept:
        linears = [name for op in run.linears(buffer) for name in op.weights["weight"]]
        chosen[buffer] = tuple(name for name in linears if name in names)
    buffers = (buffer for buffer in run.kept if chosen[buffer])
    for _, together in itertools.groupby(buffers, lambda buffer: block_of(chosen[buffer][0])):
        parts = {buffer: chosen[buffer] for buffer in together}
        block = CorrectedBlock(model, seen, parts) if method in CORRECTING else None
        for buffer, part in parts.items():
            rows = run.advance(buffer)
            trial = trials_of(model, part, block.rows[buffer] if block else None)
            # If groups do not divide rows, two schemes can be the same.
            depth = model.program.shapes[part[0]][1]
            fitting = dict.fromkeys(scheme.fitting(depth) for scheme in schemes)
            made = {scheme: trial(scheme) for scheme in fitting}
            errors = {s: _squared_error(model, rows, weights) for s, weights in made.items()}
            worst = max(errors, key=lambda scheme: errors[scheme])
            changed: list[Weight] = [*made[worst]]
            changed += block.corrected(buffer, made[worst]) if block else []
            kl = measure.loss(changed) / (errors[worst] or 1.0)
            choices = [Choice(s, bytes_of(model, part, s), kl * errors[s]) for s in fitting]
            choices.append(Choice(None, bytes_of(model, part, None), 0.0))
            yield Part(part, tuple(sorted(choices, key=lambda c: c.bytes)))
            on_part(part[0])


class CorrectedBlock:
    """A block whose layers compensate for the loss of one of its parts, as they do in a method's run.

    A part's loss by itself would be an overestimate: most of the loss in queries, keys and values is
    recovered by the layers that read the output of attention.

    Attributes:
        rows: inputs of its parts: buffer -> [tokens, depth].
    """

    def __init__(self, model: Model, seen: Layerwise, parts: Mapping[int, tuple[str, ...]]) -> None:
        """Advance ``seen`` through the block; ``parts``: buffer -> the matrices that read it, in order."""
        self._model, self._parts = model, parts
        self.rows: dict[int, Floats] = {}
        self._runs: dict[int, Layerwise] = {}
        for buffer in parts:
            self.rows[buffer] = seen.advance(buffer)
            self._runs[buffer] = seen.fork()

    def corrected(self, buffer: int, weights: Sequence[IntWeight]) -> list[DenseWeight]:
        """Return unrounded matrices of later parts, given ``weights`` for those that read ``buffer``."""
        run = self._runs[buffer].fork()
        for weight in weights:
            run.replace(weight)
        found: list[DenseWeight] = []
        behind = [*self._parts]
        for later in behind[behind.index(buffer) + 1 :]:
            rows = run.advance(later)
            factor, order = factor_of(rows.T @ rows)
            missed = self.rows[later] - rows
            for name in self._parts[later]:
                own = self._model.weights[name]
                assert isinstance(own, DenseWeight)
                matrix = corrected(to_float32(own), missed, rows, factor, order)
                found.append(as_dense(name, "F32", matrix))
                run.replace(found[-1])
        return found


def _squared_error(model: Model, rows: Floats, weights: Sequence[IntWeight]) -> float:
    """Return the squared error of the outputs for inputs [tokens, depth] against the model's own."""
    total = 0.0
    for weight in weights:
        own = model.weights[weight.name]
        assert isinstance(own, DenseWeight)
        missed = rows @ (dequantize(weight) - to_float32(own)).T
        total += float(np.square(missed, out=missed).sum(dtype=np.float64))
    return total


def bytes_of(model: Model, names: Sequence[str], scheme: Scheme | None) -> int:
    """Return the bytes of these matrices with their scales, in that scheme; None: as in the checkpoint."""
    total = 0
    for name in names:
        (outputs, depth), kind = model.weights.info(name)
        if scheme is None:
            total += outputs * depth * _dense_bytes(kind)
        else:
            groups = depth // scheme.columns(depth)
            # Zero points have ``bits`` bits, but GGUF's minima are as wide as scales.
            zero = scheme.bits / 8 if scheme.scale_type == "BF16" else _SCALE_BYTES
            scale = _SCALE_BYTES + (0 if scheme.symmetric else zero)
            total += math.ceil(outputs * (depth * scheme.bits / 8 + groups * scale))
    return total


def _dense_bytes(kind: WeightKind) -> int:
    return next(size for name, size in WEIGHT_TYPES.items() if DENSE_KINDS[name] == kind)


def bytes_without(model: Model, names: Sequence[str]) -> int:
    """Return the bytes of all other tensors of the checkpoint, which stay as they are."""
    tensors = model.checkpoint.weights()
    chosen = set(names)
    total = 0
    for name in tensors:
        weight = tensors[name]
        if name not in chosen and isinstance(weight, DenseWeight):
            total += weight.data.nbytes
    return total


def assign(
    parts: Sequence[Part], *, most_bytes: int | None = None, most_kl: float | None = None
) -> list[Choice]:
    """Choose a scheme for each part: the least loss within the bytes, or the fewest bytes within the loss.

    Losses are assumed to be additive. Starting at the smallest choices, the step that saves most loss for
    its bytes is taken repeatedly.

    Args:
        parts: the parts with their choices.
        most_bytes: that all parts together may take.
        most_kl: that they may lose together, in nats.

    Raises:
        SettingsError: the smallest choices take more bytes.
    """
    taken = [0] * len(parts)

    def now(i: int) -> Choice:
        return parts[i].choices[taken[i]]

    def size() -> int:
        return sum(now(i).bytes for i in range(len(parts)))

    if most_bytes is not None and size() > most_bytes:
        raise SettingsError(
            f"the layers need at least {size() / 1e6:.4g} MB, but --budget leaves "
            f"{most_bytes / 1e6:.4g} MB for them"
        )
    while most_kl is None or sum(now(i).kl for i in range(len(parts))) > most_kl:
        room = math.inf if most_bytes is None else most_bytes - size()
        step = _best_step(parts, taken, room)
        if step is None:
            break
        taken[step[0]] = step[1]
    return [now(i) for i in range(len(parts))]


def _best_step(parts: Sequence[Part], taken: Sequence[int], room: float) -> tuple[int, int] | None:
    best, most = None, 0.0
    for i, part in enumerate(parts):
        old = part.choices[taken[i]]
        for j in range(taken[i] + 1, len(part.choices)):
            new = part.choices[j]
            more = new.bytes - old.bytes
            gain = (old.kl - new.kl) / max(1, more)
            if more <= room and gain > most:
                best, most = (i, j), gain
    return best


def schemes_of(parts: Sequence[Part], choices: Sequence[Choice]) -> Mapping[str, Scheme]:
    """Return tensor -> how it is quantized, for the tensors that are."""
    return {
        name: choice.scheme
        for part, choice in zip(parts, choices, strict=True)
        if choice.scheme is not None
        for name in part.names
    }
