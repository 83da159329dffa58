"""Builds the engine of a model that makes vectors or scores of whole texts: no cache, no sequences."""

from array import array
from typing import Final

from galley.engine.embedding_engine import EmbeddingEngine
from galley.engine.loading import Loading
from galley.engine.memory import plan_without_cache
from galley.engine.read_model import Model
from galley.errors import SettingsError
from galley.ops.batch import Batch
from galley.ops.executor import Executor, forward
from galley.types.model_info import TextInfo, VectorInfo

_OF_GENERATION: Final = {
    "quality_gate": "",
    "draft_model": None,
    "batching": "continuous",
    "max_adapters": None,
    "experts": "memory",
    "prefix_cache_dir": "",
}
"""Settings that do not apply to such a model -> their defaults."""


def build_vectors(loading: Loading) -> EmbeddingEngine:
    """Plan memory, load the weights and warm up; settings of the KV cache have no effect.

    Raises:
        ModelError, SettingsError: the checkpoint or the settings cannot be used.
        EngineFailed: there is not enough memory.
    """
    settings, model = loading.settings, loading.model
    for name, unset in _OF_GENERATION.items():
        value = getattr(settings, name)
        if value and value != unset:
            raise SettingsError(
                f"{name} is {value!r}, but {loading.name} computes vectors and generates no text; leave it "
                "out for this model"
            )
    program, head = model.program, model.head
    assert head is not None
    longest = min(program.max_positions, head.max_tokens or program.max_positions)
    max_tokens, ledger = plan_without_cache(
        settings,
        program,
        model.options,
        loading.executor_name,
        lambda chosen: loading.factory.memory(program, model.weights, chosen),
        name=loading.name,
        family=loading.family,
        longest=longest,
        all_rows=head.all_rows,
    )
    loading.announce(ledger)
    executor = loading.executor(program, model.options)
    executor.allocate_kv(0)
    _warm_up(executor)
    loading.clock.end("warm-up")
    info = loading.info(
        executor,
        program,
        model.options,
        ledger,
        TextInfo(vocab_size=program.token_ids, max_model_len=max_tokens),
        tasks=(head.task,),
        vectors=_described(model),
    )
    return EmbeddingEngine(
        executor,
        head,
        info,
        max_batch_tokens=settings.max_batch_tokens,
        priority_steps=settings.priority_steps,
        meter=loading.meter,
    )


def _described(model: Model) -> VectorInfo:
    head, program = model.head, model.program
    assert head is not None
    types = [op.tensor("weight") for op in program.ops if op.name == "embed_types"]
    return VectorInfo(
        pooling="+".join(head.pooling),
        normalized=head.normalize,
        width=head.width(program.vocab_size),
        dimensions=head.dimensions,
        prompts=dict(head.prompts or {}),
        default_prompt=head.default_prompt,
        pair_types=any(program.shapes[name][0] > 1 for name in types),
    )


def _warm_up(executor: Executor) -> None:
    """Run one token through everything, so that the first text does not pay for lazy initialization."""
    zero, starts = array("q", [0]), array("q", [0, 1])
    forward(executor, Batch(zero, zero, starts, (), zero))
