"""The quality gate: measures a model's loss against its checkpoint's own weights, before it is served."""

import dataclasses
import hashlib
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from galley.calibration import store
from galley.calibration.layerwise import LOGIT_ROWS, Layerwise, text_batch, text_steps
from galley.calibration.measures import Divergence, Loss, following
from galley.engine.engine import Engine
from galley.engine.read_model import Model, read_model
from galley.errors import UnsupportedModel
from galley.formats.reader import CheckpointReader
from galley.formats.source import resolve_model
from galley.formats.weights import DENSE_KINDS
from galley.ops.batch import Batch
from galley.ops.choice import executor_factory
from galley.ops.executor import Executor, ExecutorOptions, forward
from galley.ops.kinds import input_steps
from galley.ops.sampling import Logits
from galley.quant.int8_inputs import ROUNDING_VERSION
from galley.settings.engine import EngineSettings
from galley.settings.quality_gate import QualityGate
from galley.types import BLOCK_TOKENS, blocks_for
from galley.types.model_info import ModelInfo, WeightReceipt
from galley.types.weight_dtypes import HALVES, SIZES, WEIGHT_DTYPES

log: Final = logging.getLogger("galley.quality")

_TEXTS: Final = 6
_TOKENS: Final = 64
"""Tokens of each text."""

_ROUNDED: Final = SIZES[::-1]
"""Integer weight types, the smallest first."""

_WIDER: Final = "bfloat16"
"""Input type that loses almost nothing, unlike int8, with the same weights."""


def check(engine: Engine, settings: EngineSettings, folder: Path) -> None:
    """Measure a loaded engine against the setting ``quality_gate`` and note the figures in its info.

    Raises:
        UnsupportedModel: the model loses more than the gate allows; the message has the figures and the
            cheapest change that would pass.
    """
    gate = QualityGate.parse(settings.quality_gate)
    if gate.limits:
        engine.info = msgspec.structs.replace(
            engine.info, weights=_checked(gate, engine, settings, folder)
        )


def _checked(
    gate: QualityGate, engine: Engine, settings: EngineSettings, folder: Path
) -> WeightReceipt:
    receipt = engine.info.weights
    assert receipt is not None
    known = {"kl": receipt.kl, "kl99": receipt.kl99, "top1": receipt.top1}
    figures = {name: value for name, value in known.items() if value is not None}
    if len(figures) == len(known) and not settings.quality_gate_against:
        if misses := gate.misses(figures):
            raise _refused(engine.info, gate, misses, "another checkpoint of the model")
        return receipt
    check = _Check(engine, settings, folder)
    loss = check.loss()
    figures = figures_of(loss)
    if misses := gate.misses(figures):
        raise _refused(engine.info, gate, misses, check.cheapest(gate))
    log.info(
        "%s as %s passes the quality gate %s: KL %.3g, 99 %% %.3g, top-1 %.2f%%, at %d positions",
        *(
            engine.info.name,
            receipt.kind,
            gate,
            loss.kl,
            loss.kl_p99,
            100 * loss.top1,
            _TEXTS * _TOKENS,
        ),
    )
    return msgspec.structs.replace(receipt, **figures)


def figures_of(loss: Loss) -> dict[str, float]:
    """Return the figures by the names of the gate's limits."""
    return {"kl": loss.kl, "kl99": loss.kl_p99, "top1": loss.top1}


def _refused(
    info: ModelInfo, gate: QualityGate, misses: Sequence[str], remedy: str
) -> UnsupportedModel:
    assert info.weights is not None
    return UnsupportedModel(
        f"{info.name} as {info.weights.kind} does not pass the quality gate {gate}: "
        f"{'; '.join(misses)}. The cheapest settings that pass: {remedy}"
    )


class _Check:
    """Compares a loaded engine with an original, on text that the loaded model samples at temperature 1.

    The original is the engine's own checkpoint, or the one that ``quality_gate_against`` names. Its weights
    are run layer by layer, so they need little memory.
    """

    def __init__(self, engine: Engine, settings: EngineSettings, folder: Path) -> None:
        """Prepare the comparison.

        Raises:
            UnsupportedModel: the checkpoint has no weights of more bits to compare with.
        """
        self._engine = engine
        self._settings = settings
        self._executor = engine.executor
        self._factory = executor_factory(engine.info.executor)
        self._model: Model = read_model(settings, folder, engine.info.executor)
        if engine.info.speech is not None:
            raise UnsupportedModel(
                f"quality_gate is for language models, and {engine.info.name} is a speech model; leave it "
                "out, or set it for the language model only (NAME.quality_gate=...)"
            )
        self._original = self._find_original()
        self._windows: list[list[int]] = []

    def _find_original(self) -> Model:
        named = self._settings.quality_gate_against
        found = self._model
        if named:
            settings = dataclasses.replace(
                self._settings, model=named, dtype="auto", weight_dtype="auto", activations="auto"
            )
            found = read_model(settings, resolve_model(named), self._engine.info.executor)
        info = found.weights.info
        if not all(info(name).kind.is_dense for name in found.program.matrices):
            raise UnsupportedModel(
                f"{named or self._engine.info.name} is quantized in its checkpoint, so there is nothing to "
                "compare it with: set quality_gate_against to the original, or leave out quality_gate"
            )
        ours, its = self._model.program.vocab_size, found.program.vocab_size
        if ours != its:
            raise UnsupportedModel(
                f"quality_gate_against: {named} has {its} tokens in its vocabulary, "
                f"{self._engine.info.name} has {ours}; name the checkpoint that it was quantized from"
            )
        return found

    def loss(self) -> Loss:
        """Return the loaded model's loss, from an earlier measurement if nothing relevant has changed."""
        name = self._digest()
        found = store.get(name, Loss) if self._settings.weight_cache else None
        if found is not None:
            return found
        loss = self._compare(self._pieces())
        if self._settings.weight_cache:
            store.put(name, f"quality gate of {self._engine.info.name}", loss)
        return loss

    def _digest(self) -> str:
        info = self._engine.info
        assert info.weights is not None
        assert info.ledger is not None
        program = info.require_program()
        known = [
            *(
                self._model.checkpoint.state(),
                info.weights.kind,
                program.activations,
                program.kv_dtype,
            ),
            *(info.ledger.isa, str(self._settings.disable_pass), str((_TEXTS, _TOKENS))),
            *([f"{ROUNDING_VERSION} {self._static_inputs}"] if self._rounds_inputs else ()),
        ]
        if self._original is not self._model:
            known.append(self._original.checkpoint.state())
        return hashlib.sha256("\0".join(known).encode()).hexdigest()[:32]

    def cheapest(self, gate: QualityGate) -> str:
        """Return the cheapest change that passes: other inputs cost no memory, so they are tried first."""
        if self._rounds_inputs and self._passes(gate, self._model, None, _WIDER):
            return f"activations {_WIDER} with the same weights"
        named = self._settings.quality_gate_against
        of_it = f"{named} with weight_dtype " if named else "weight_dtype "
        for kind in self._kinds():
            if self._passes(gate, self._original, kind, "auto"):
                return f"{of_it}{kind}"
            if kind in _ROUNDED and self._passes(gate, self._original, kind, _WIDER):
                return f"{of_it}{kind} and activations {_WIDER}"
        return f"{named} itself" if named else "weight_dtype auto, the checkpoint's own type"

    @property
    def _rounds_inputs(self) -> bool:
        return self._engine.info.require_program().activations == "int8"

    @property
    def _static_inputs(self) -> int:
        """Number of matrices whose inputs have a static scale."""
        model = self._model
        return len(input_steps(model.program, model.weights, model.options.activations))

    def _passes(self, gate: QualityGate, model: Model, kind: str | None, inputs: str) -> bool:
        """Return whether ``model`` passes with matrices as ``kind`` (None: as served) and ``inputs``."""
        kind = kind or model.options.weight_dtype
        options = dataclasses.replace(model.options, weight_dtype=kind, activations=inputs)
        try:
            other = self._layerwise(options, kind, model)
        except UnsupportedModel:  # values that float16 cannot represent
            return False
        return not gate.misses(figures_of(self._compare(other.logits())))

    def _kinds(self) -> list[str]:
        """Return types cheaper than the original's; if it is the served checkpoint, wider than served."""
        weights = self._original.weights
        own = {weights.info(name).kind for name in self._original.program.matrices}
        kinds = [*_ROUNDED, *(HALVES if DENSE_KINDS["F32"] in own else ())]
        served = self._model.options.weight_dtype
        if self._original is not self._model:
            return kinds
        if (layout := WEIGHT_DTYPES[served].layout) in kinds:
            return kinds[kinds.index(layout) :]
        return kinds[kinds.index(served) + 1 :] if served in kinds else []

    def _compare(self, pieces: Iterator[tuple[int, Logits]]) -> Loss:
        base = self._base().logits()
        after = following(self._texts())
        divergence = Divergence()
        for (first, p), (_, q) in zip(base, pieces, strict=True):
            divergence.add(p, q, after[first : first + len(p)])
        return divergence.loss()

    def _base(self) -> Layerwise:
        """Return the original as it is: no weight, input, key or value is rounded."""
        options = dataclasses.replace(
            self._original.options,
            dtype="float32",
            weight_dtype="float32",
            activations="float32",
            kv_dtype="float32",
        )
        return self._layerwise(options, None, self._original)

    def _layerwise(
        self, options: ExecutorOptions, weight_dtype: str | None, model: Model
    ) -> Layerwise:
        layers = Layerwise(
            model.program,
            model.weights,
            self._texts(),
            self._factory,
            options,
            weight_dtype=weight_dtype,
        )
        for buffer in layers.kept:
            layers.advance(buffer)
        return layers

    def _pieces(self) -> Iterator[tuple[int, Logits]]:
        """Yield the loaded model's logits of the texts, in the steps of :meth:`Layerwise.logits`."""
        texts = self._texts()
        ids = np.concatenate([np.asarray(text, dtype=np.int64) for text in texts])
        groups = len(self._model.program.kv_groups)
        for first, lengths in text_steps([len(text) for text in texts], LOGIT_ROWS):
            batch = text_batch(ids[first : first + sum(lengths)], lengths, groups)
            yield first, forward(self._executor, batch)

    def _texts(self) -> list[list[int]]:
        """Return texts sampled from the loaded model, in one batch; made once."""
        if not self._windows:
            length = min(_TOKENS, self._engine.info.max_request_tokens // 2)
            room = (
                self._engine.info.require_text().kv_cache_tokens
                // BLOCK_TOKENS
                // len(self._model.program.kv_groups)
            )
            count = max(1, min(_TEXTS, room // blocks_for(length), self._settings.running_limit))
            ledger = self._engine.info.ledger
            if ledger is not None and ledger.states:
                count = min(count, ledger.state_slots)
            first = first_token(self._model.checkpoint)
            self._windows = sampled(
                self._executor, len(self._model.program.kv_groups), first, count, length
            )
        return self._windows


def first_token(checkpoint: CheckpointReader) -> int:
    """Return the first token of texts: BOS, or for a model without one the token that ends a text."""
    bos = checkpoint.config.get("bos_token_id")
    return bos if isinstance(bos, int) else (*checkpoint.eos_token_ids, 0)[0]


def sampled(
    executor: Executor, groups: int, first: int, count: int, length: int, seed: int = 0
) -> list[list[int]]:
    """Sample texts from a model at temperature 1, all of one length.

    Args:
        executor: with ``groups`` KV groups and room for the texts.
        groups: of the executor.
        first: the token that each begins with.
        count: how many.
        length: tokens of each.
        seed: of the draws (Gumbel's trick, arXiv:1611.00712).
    """
    random = np.random.default_rng(seed)
    blocks = blocks_for(length)
    tables = tuple(
        np.arange(blocks, dtype=np.int64) + blocks * (s + group * count)
        for group in range(groups)
        for s in range(count)
    )
    rows = np.arange(count, dtype=np.int64)
    starts = np.arange(count + 1, dtype=np.int64)
    texts = [[first] for _ in range(count)]
    for position in range(length - 1):
        tokens = np.array([text[-1] for text in texts], dtype=np.int64)
        positions = np.full(count, position, dtype=np.int64)
        logits = forward(executor, Batch(tokens, positions, starts, tables, rows))
        drawn = (logits + random.gumbel(size=logits.shape)).argmax(axis=1)
        for text, token in zip(texts, drawn, strict=True):
            text.append(int(token))
    return texts
