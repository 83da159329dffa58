"""Passes change a program's cost, and no bit of its results."""

import dataclasses
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from galley.engine.loaders import load_engine
from galley.engine.read_model import read_model
from galley.errors import SettingsError
from galley.formats.checkpoint import Checkpoint
from galley.graph.passes import PASSES, run_passes
from galley.graph.passes.drop_dead import drop_dead
from galley.graph.passes.fuse_rope_kv import fuse_rope_kv
from galley.graph.passes.hoist_select_rows import hoist_select_rows
from galley.graph.passes.merge_linears import merge_linears
from galley.graph.program import Program
from galley.graph.trace import Buffer, Tracer, trace
from galley.models.registry import build_program
from galley.ops.batch import Batch
from galley.ops.cpu import CpuExecutor
from galley.ops.executor import Executor, forward
from galley.settings.engine import Activations, EngineSettings, WeightDType
from tests.checkpoints import KNOWN_OPS, VARIANTS, random_ids
from tests.conftest import CheckpointMaker
from tests.native.harness import LAYERS, Floats, quantized, ragged
from tests.thorough import THOROUGH, some_of

LENGTHS = (1, 19, 40)


def settings_of(
    folder: Path,
    kind: WeightDType = "auto",
    activations: Activations = "auto",
    disabled: tuple[str, ...] = (),
) -> EngineSettings:
    return EngineSettings(
        model=str(folder),
        executor="cpu",
        weight_dtype=kind,
        activations=activations,
        dtype="bfloat16" if kind == "bf16" else "float32",
        kv_dtype="int8" if kind == "int8" else "auto",
        disable_pass=disabled,
        threads=2,
    )


def all_logits(executor: Executor) -> list[Floats]:
    """Return the logits of a ragged prefill with all rows wanted, then with some, then of a decode step."""
    ids = [random_ids(n, n + 1) for n in LENGTHS]
    whole = ragged(
        [(list(i[:-1]), len(i) - 1) for i in ids], first_block=0, groups=executor.kv_groups
    )
    ends = np.asarray(whole.starts)[1:] - 1
    some = Batch(whole.tokens, whole.positions, whole.starts, whole.tables, ends)
    decode = ragged([(i, 1) for i in ids], first_block=0, groups=executor.kv_groups)
    return [forward(executor, batch).copy() for batch in (whole, some, decode)]


@pytest.mark.parametrize(
    ("variant", "layers"),
    [
        *((v, ("int8", "int8")) for v in VARIANTS if v in KNOWN_OPS),
        *some_of([v for v in VARIANTS if v not in KNOWN_OPS], LAYERS, of=4),
    ],
    ids=str,
)
def test_no_pass_changes_a_bit(
    variant: str, layers: tuple[WeightDType, Activations], checkpoint: CheckpointMaker
) -> None:
    folder, (kind, activations) = checkpoint(variant), layers
    model = read_model(settings_of(folder, kind, activations), folder)

    def logits_without(disabled: tuple[str, ...]) -> list[Floats]:
        options = dataclasses.replace(model.options, disable_pass=disabled, weight_cache=None)
        executor = CpuExecutor(model.program, model.weights, options)
        executor.allocate_kv(64, states=8)
        return all_logits(executor)

    program = quantized(traced(folder), kind, activations)
    plain = logits_without(tuple(PASSES))
    choices = [(), *(tuple(other for other in PASSES if other != name) for name in PASSES)]
    # One pass left out: each for some variants.
    number = [*VARIANTS].index(variant) + LAYERS.index(layers)
    choices += [(name,) for i, name in enumerate(PASSES) if THOROUGH or i == number % len(PASSES)]
    ran = [run_passes(program, tuple(PASSES))]
    for disabled in choices:
        if (changed := run_passes(program, disabled)) in ran:
            continue  # not every pass applies to every model
        ran.append(changed)
        for got, expected in zip(logits_without(disabled), plain, strict=True):
            assert np.array_equal(got.view(np.int32), expected.view(np.int32)), disabled


def traced(folder: Path) -> Program:
    return build_program(Checkpoint.open(folder).config)


def counts(program: Program) -> Counter[str]:
    return Counter(op.name for op in program.ops)


def test_what_each_pass_does_to_a_llama(checkpoint: CheckpointMaker) -> None:
    """Two layers: names and numbers of ops, written out."""
    program = quantized(traced(checkpoint("llama")), "int8", "int8")
    assert counts(program)["linear"] == 15
    assert counts(program)["quantize_input"] == 9
    final = counts(run_passes(program))
    assert final == {
        "embed": 1,
        "rms_norm_quantize": 1,
        "linear": 9,
        "columns": 10,
        "rope_attention": 2,
        "quantize_input": 2,
        "add_rms_norm_quantize": 4,
        "silu_mul_quantize": 2,
        "select_rows": 2,
    }
    assert counts(run_passes(program, tuple(PASSES))) == counts(program)


def test_the_last_layer_computes_wanted_rows_alone(checkpoint: CheckpointMaker) -> None:
    program = hoist_select_rows(traced(checkpoint("llama")))
    names = [op.name for op in program.ops]
    attention = len(names) - 1 - names[::-1].index("attention")
    assert names[attention + 1 : attention + 3] == ["select_rows", "select_rows"]
    assert names.count("select_rows") == 2
    selected = [op.inputs[0] for op in program.ops if op.name == "select_rows"]
    readers = program.readers()
    # Nothing else reads the stream and the attention of the last layer.
    assert all(len(readers[b]) == 1 for b in selected[:1])
    assert program.ops[attention].output in selected


def test_an_mlp_parallel_to_attention_reads_the_rows_that_it_rounds_itself(
    checkpoint: CheckpointMaker,
) -> None:
    """The last layer's MLP computes wanted rows only; its input is selected before it is rounded."""
    traced_program = quantized(traced(checkpoint("cohere")), "int8", "int8")
    program = hoist_select_rows(traced_program)
    names = [op.name for op in program.ops]
    attention = len(names) - 1 - names[::-1].index("attention")
    assert names[attention + 1 : attention + 4] == ["select_rows"] * 3
    writers = {b: op for op in program.ops for b in op.outputs}
    selects = [op for op in program.ops if op.name == "select_rows"]
    assert "quantize_input" not in {writers[op.inputs[0]].name for op in selects}
    rounds = counts(program)["quantize_input"]
    assert rounds == counts(traced_program)["quantize_input"] + 1
    # The first layer has one matrix: q, k, v, gate and up; in the last, gate and up have fewer rows.
    merged = [len(op.weights["weight"]) for op in merge_linears(program).ops if op.name == "linear"]
    assert merged == [5, 1, 1, 3, 1, 2, 1, 1]


@pytest.mark.parametrize("adjacent", [(True, True), (False, False), (True, False)], ids=str)
def test_rotations_are_fused_where_they_are_the_same(adjacent: tuple[bool, bool]) -> None:
    def describe(g: Tracer) -> Buffer:
        x = g.embed("e", vocab=8, width=4)
        q, k = (g.rope(x, head_dim=4, inv_freq=(1.0, 0.5), scale=1.0, adjacent=a) for a in adjacent)
        return g.linear(g.attention(q, k, x, key_dim=4, scale=1.0, window=0), "head", 8)

    program = fuse_rope_kv(trace(describe, max_positions=8))
    found = [op.attrs["adjacent"] for op in program.ops if op.name == "rope_attention"]
    assert found == ([adjacent[0]] if adjacent[0] == adjacent[1] else [])


def test_layers_with_and_without_bias_stay_apart() -> None:
    def describe(g: Tracer) -> Buffer:
        x = g.embed("e", vocab=8, width=4)
        a, b = g.linear(x, "a", 4), g.linear(x, "b", 4, bias="b.bias")
        c, d = g.linear(x, "c", 4, bias="c.bias"), g.linear(x, "e", 8)
        return g.linear(g.add(g.add(a, b), c), "d", g.linear(x, "f", d.width).width)

    program = merge_linears(trace(describe, max_positions=8))
    merged = {op.weights["weight"]: op for op in program.ops if op.name == "linear"}
    # "e" is the embedding, too: merging would keep it twice.
    assert set(merged) == {("a", "f"), ("b", "c"), ("e",), ("d",)}
    assert merged["b", "c"].weights["bias"] == ("b.bias", "c.bias")
    assert merged["a", "f"].width == 12


def test_ops_with_unused_results_are_dropped() -> None:
    def describe(g: Tracer) -> Buffer:
        x = g.embed("e", vocab=8, width=4)
        g.rms_norm(g.linear(x, "unused", 4), "norm", eps=1e-5)
        return g.linear(x, "head", 8)

    program = trace(describe, max_positions=8)
    assert [op.name for op in drop_dead(program).ops] == ["embed", "linear"]
    assert drop_dead(drop_dead(program)) == drop_dead(program)


def test_an_unknown_pass_is_refused_with_the_list(checkpoint: CheckpointMaker) -> None:
    folder = checkpoint("llama")
    with pytest.raises(SettingsError, match=r"unknown pass 'melt'; passes: .*merge-linears"):
        load_engine(settings_of(folder, disabled=("melt",)), folder)


def test_the_reference_executor_has_no_passes_to_leave_out(checkpoint: CheckpointMaker) -> None:
    folder = checkpoint("llama")
    settings = EngineSettings(model=str(folder), executor="reference", disable_pass=("drop-dead",))
    with pytest.raises(SettingsError, match=r"disable_pass is drop-dead.* executor 'cpu'"):
        load_engine(settings, folder)
