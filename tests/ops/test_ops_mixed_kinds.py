"""Each matrix of a model may have its own kind, and a reader's integers are used unchanged."""

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from galley import _native
from galley.errors import SettingsError, UnsupportedModel
from galley.formats.reader import CheckpointReader
from galley.formats.values import bf16_bits, dequantize, to_float32
from galley.formats.weights import (
    BlockWeight,
    DenseWeight,
    IntWeight,
    LoadedWeights,
    TensorInfo,
    Weight,
    Weights,
)
from galley.graph.passes import run_passes
from galley.graph.program import Program
from galley.graph.quantize_inputs import quantize_inputs
from galley.models.registry import build_program
from galley.ops import background
from galley.ops.cpu import CpuExecutor
from galley.ops.cpu_plan import planned_step_costs
from galley.ops.executor import Executor, ExecutorOptions, forward
from galley.ops.isa import ISA_VARIABLE
from galley.ops.kinds import own_kinds, plan_activations, plan_kinds
from galley.ops.packed_cache import cached_files
from galley.ops.packed_files import packed_folder
from galley.ops.packing import pack_integers
from galley.ops.reference import ReferenceExecutor
from galley.quant.rtn import quantize_int4
from galley.types import SamplingDefaults
from tests.checkpoints import VARIANTS
from tests.conftest import CheckpointMaker
from tests.native.harness import ISAS, KINDS, KV_TYPES, Floats, as_weight, program_of, ragged

CONFIG: Final[Mapping[str, Any]] = {
    "model_type": "llama",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 256,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "num_attention_heads": 4,
    "head_dim": 16,
    "hidden_size": 96,
    "intermediate_size": 200,
    "vocab_size": 150,
    "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
}
INT4_ZEROS: Final = ("self_attn.q_proj", "self_attn.k_proj", "mlp.down_proj")
INT8_GROUPS: Final = ("self_attn.v_proj", "lm_head")
BF16: Final = ("mlp.gate_proj", "self_attn.o_proj")
CHOSEN: Final = {f"model.layers.{i}.{name}.weight": "bf16" for i in range(2) for name in BF16}
"""The rest, up_proj and the embedding, stays float32."""


def values_of(name: str, shape: tuple[int, ...]) -> Floats:
    rng = np.random.default_rng(int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]))
    return rng.normal(0, shape[-1] ** -0.5, shape).astype(np.float32)


def typed(name: str, shape: tuple[int, ...]) -> Weight:
    values = values_of(name, shape)
    if any(part in name for part in INT4_ZEROS):
        made = quantize_int4(as_weight(values), group=32, symmetric=False)
        return IntWeight(name, 4, made.q, 32, made.scales, made.zeros, "BF16")
    if any(part in name for part in INT8_GROUPS):
        grouped = np.abs(values).reshape(len(values), -1, 48).max(axis=2) / 127
        scales = grouped.astype(np.float16).astype(np.float32)
        q = np.rint(values / np.repeat(scales, 48, axis=1)).clip(-127, 127).astype(np.int8)
        return IntWeight(name, 8, q, 48, scales, None, "F16")
    if any(part in name for part in BF16):
        data = bf16_bits(values).reshape(-1).view(np.uint8)
        return DenseWeight(name, "BF16", shape, data)
    return DenseWeight(name, "F32", shape, values.reshape(-1).view(np.uint8))


class Lazy(Weights):
    """Unpacks a tensor on access, and counts how often."""

    def __init__(self, program: Program) -> None:
        self._shapes = program.all_shapes
        self._infos = {n: TensorInfo(s, typed(n, s).kind) for n, s in self._shapes.items()}
        self.reads: Counter[str] = Counter()

    def info(self, name: str) -> TensorInfo:
        return self._infos[name]

    def __getitem__(self, name: str) -> Weight:
        self.reads[name] += 1
        return typed(name, self._shapes[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)


@dataclass(frozen=True)
class Toy:
    """A reader of an invented format."""

    folder: Path
    tensors: Weights
    config: Mapping[str, Any]
    generation: Mapping[str, Any]
    eos_token_ids: tuple[int, ...]
    defaults: SamplingDefaults

    def check_token_ids(self, vocab_size: int) -> None: ...

    def weights(self) -> Weights:
        return self.tensors

    def content_hash(self) -> str:
        return "content"

    def outline(self) -> str:
        return "outline"

    def state(self) -> str:
        return "state"


PROGRAM: Final = build_program(CONFIG)
IDS: Final = [7, 3, 99, 140, 0, 21, 22, 23, 5, 5, 5, 60, 61, 62, 63, 64, 65, 66, 1, 2, 3]


def options(**changes: Any) -> ExecutorOptions:
    given = {"dtype": "float32", "weight_dtype": "float32", "kv_dtype": "float32", "device": "cpu"}
    return ExecutorOptions(**{**given, "threads": 2, "kinds": CHOSEN, **changes})


def logits(executor: Executor) -> Floats:
    executor.allocate_kv(4)
    return forward(executor, ragged([(IDS, len(IDS))], first_block=0)).copy()


def reader(folder: Path) -> CheckpointReader:
    return Toy(folder, Lazy(PROGRAM), CONFIG, {}, (), SamplingDefaults())


def taken(checkpoint: CheckpointReader) -> Weights:
    return build_program(checkpoint.config).take_weights(checkpoint.weights(), folder="toy")


def dequantized() -> Weights:
    """Return all tensors of the toy as float32."""
    dense = {}
    for name, shape in PROGRAM.all_shapes.items():
        weight = typed(name, shape)
        assert isinstance(weight, DenseWeight | IntWeight)
        values = dequantize(weight) if isinstance(weight, IntWeight) else to_float32(weight)
        dense[name] = as_weight(values)
    return LoadedWeights(dense)


def relative(got: Floats, expected: Floats) -> float:
    return float(np.abs(got - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize("isa", ISAS)
def test_a_mixture_agrees_with_torch_over_the_dequantized_weights(
    isa: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ISA_VARIABLE, isa)
    weights = taken(reader(tmp_path))
    expected = logits(ReferenceExecutor(PROGRAM, dequantized(), options(kinds={})))
    assert np.array_equal(logits(ReferenceExecutor(PROGRAM, weights, options())), expected)
    for activations, limit in (("float32", 1e-5), ("bfloat16", 2e-2), ("auto", 5e-2)):
        executor = CpuExecutor(PROGRAM, weights, options(activations=activations))
        assert relative(logits(executor), expected) <= limit, activations
    # The type used for most products.
    assert executor.activations == ("int8" if isa in ("amx", "avx512") else "float32")


def test_passes_change_no_bit_of_a_mixture(tmp_path: Path) -> None:
    weights = taken(reader(tmp_path))
    names = ("merge-linears", "fuse-norm-quantize", "fuse-silu-quantize", "hoist-select-rows")
    whole = logits(CpuExecutor(PROGRAM, weights, options()))
    for disabled in (*((name,) for name in names), names):
        got = logits(CpuExecutor(PROGRAM, weights, options(disable_pass=disabled)))
        assert np.array_equal(got, whole), disabled


def test_layers_share_rounded_inputs_of_one_layout_and_merge_if_they_are_of_one_kind() -> None:
    weights = Lazy(PROGRAM)
    kinds = plan_kinds(PROGRAM, "float32", own=own_kinds(PROGRAM, weights), chosen=CHOSEN)
    activations = plan_activations(kinds, "float32", "auto", "amx")
    assert activations == {"float32": "float32", "bf16": "bfloat16", "int8": "int8", "int4": "int8"}
    program = quantize_inputs(PROGRAM.with_kinds(kinds), activations)
    layer = [op for op in program.ops if op.name in ("linear", "quantize_input")][:10]
    assert [(op.name, op.attrs.get("layout")) for op in layer] == [
        ("quantize_input", ("int8", "int4", 32, 0.0)),
        ("linear", None),  # q
        ("linear", None),  # k
        ("quantize_input", ("int8", "int8", 48, 0.0)),
        ("linear", None),  # v
        ("quantize_input", ("bfloat16", "bf16", 0, 0.0)),
        ("linear", None),  # o
        ("quantize_input", ("bfloat16", "bf16", 0, 0.0)),
        ("linear", None),  # gate; up stays float32
        ("linear", None),
    ]
    final = run_passes(program)
    merged = {op.weights["weight"] for op in final.ops if op.name == "linear"}
    first = "model.layers.0."
    assert (f"{first}self_attn.q_proj.weight", f"{first}self_attn.k_proj.weight") in merged
    assert (f"{first}self_attn.v_proj.weight",) in merged
    assert (f"{first}mlp.gate_proj.weight",) in merged
    # Two layouts of one norm's result: it stays float32 for both.
    assert "rms_norm_quantize" not in {op.name for op in final.ops}


def test_packed_integers_come_back_from_the_cache_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GALLEY_CACHE_DIR", str(tmp_path / "cache"))

    def started(**changes: Any) -> tuple[Floats, Counter[str]]:
        toy = reader(tmp_path)
        weights = toy.weights()
        assert isinstance(weights, Lazy)
        made = logits(CpuExecutor(PROGRAM, taken(toy), options(weight_cache=toy, **changes)))
        background.finish()
        return made, weights.reads

    first, read = started()
    assert set(read) == set(PROGRAM.all_shapes)
    second, read = started()
    assert np.array_equal(first, second)
    assert not PROGRAM.matrices & set(read)
    # Matrices of another kind are not read from the file, nor is what merges with them.
    other, read = started(kinds={})
    up = {f"model.layers.{i}.mlp.up_proj.weight" for i in range(2)}
    assert PROGRAM.matrices & set(read) == {*CHOSEN, *up}
    again, read = started(kinds={})
    assert np.array_equal(other, again)
    assert not PROGRAM.matrices & set(read)
    # Without instructions for bfloat16, its matrices give the bits of float32; integers never do.
    rounded, read = started(kinds=dict.fromkeys(CHOSEN, "int8"))
    assert set(CHOSEN) <= set(read)
    assert not np.array_equal(rounded, first)
    assert len(cached_files(packed_folder())) == 1


def test_stored_integers_are_unchanged_when_other_layers_are_rounded(tmp_path: Path) -> None:
    """A dense matrix rounded to the kind of an integer one merges with it."""
    values = {name: values_of(name, shape) for name, shape in PROGRAM.all_shapes.items()}
    dense: dict[str, Weight] = {name: as_weight(v) for name, v in values.items()}
    mixed = dict(dense)
    for name in ("model.layers.0.self_attn.k_proj.weight", "model.layers.1.mlp.up_proj.weight"):
        mixed[name] = quantize_int4(as_weight(values[name]))
    rounded, as_they_are = (
        logits(CpuExecutor(PROGRAM, LoadedWeights(tensors), options(weight_dtype="int4", kinds={})))
        for tensors in (dense, mixed)
    )
    assert np.array_equal(rounded, as_they_are)


def test_int8_with_groups_is_packed_exactly() -> None:
    weight = typed("lm_head.weight", (150, 96))
    assert isinstance(weight, IntWeight)
    packed = pack_integers([weight])
    runtime = _native.Runtime("portable", 1, [])
    program = _native.Program(runtime, 384, 96)
    program.embed(packed, (0, 384, 0))
    program.select_rows(96, (0, 384, 0), (_native.LOGITS, 384, 0))
    runtime.allocate_kv(10)
    out, at = np.zeros((150, 96), np.float32), np.arange(150)
    program.forward(at, at, np.array([0, 150]), at[:0], at[:1], at, out)
    assert np.array_equal(out, dequantize(weight))


@pytest.mark.parametrize("flaw", ["block", "norm"])
def test_kinds_without_a_kernel_are_refused_and_named(flaw: str) -> None:
    name, shape = "model.layers.1.mlp.up_proj.weight", (200, 96)
    made = BlockWeight(name, "MXFP4", shape, 32, 17, np.zeros(200 * 3 * 17, np.uint8))
    if flaw == "norm":
        name = "model.norm.weight"
        made = BlockWeight(name, "MXFP4", (96,), 32, 17, np.zeros(51, np.uint8))
    tensors = {n: typed(n, s) for n, s in PROGRAM.all_shapes.items()} | {name: made}
    with pytest.raises(
        UnsupportedModel, match=rf"{name} is kept as MXFP4, for which executor 'cpu'"
    ):
        CpuExecutor(PROGRAM, LoadedWeights(tensors), options())
    with pytest.raises(UnsupportedModel, match=rf"{name} is kept as MXFP4.*'reference'"):
        ReferenceExecutor(PROGRAM, LoadedWeights(tensors), options())


def test_integers_without_a_kernel_are_kept_as_values_and_this_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    name, shape = "model.layers.1.mlp.up_proj.weight", (200, 96)
    rng = np.random.default_rng(1)
    scales = rng.uniform(0.01, 0.02, (200, 4)).astype(np.float32)
    q8 = rng.integers(-9, 9, shape, np.int8)
    made = IntWeight(name, 8, q8, 24, scales, None, "F32")
    tensors = {n: typed(n, s) for n, s in PROGRAM.all_shapes.items()} | {name: made}
    floats = tensors | {name: as_weight(dequantize(made))}
    got, expected = (
        logits(CpuExecutor(PROGRAM, LoadedWeights(one), options())) for one in (tensors, floats)
    )
    assert np.array_equal(got, expected)
    with caplog.at_level("INFO", "galley.weights"):
        CpuExecutor(PROGRAM, LoadedWeights(tensors), options())
    said = f"1 matrices are {made.kind}"
    assert any(said in message and "no value changes" in message for message in caplog.messages)


def test_minima_are_added() -> None:
    q = np.array([[0, 15, 3, 4]], np.uint8)
    scales, minima = np.array([[0.5, 2.0]], np.float32), np.array([[-1.0, 3.0]], np.float32)
    weight = IntWeight("w", 4, q, 2, scales, None, "F16", minima=minima)
    assert dequantize(weight).tolist() == [[-1.0, 6.5, 9.0, 11.0]]


def test_a_kind_chosen_for_nothing_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"given for model\.nrom"):
        plan_kinds(PROGRAM, "int4", chosen={"model.nrom": "bf16"})


def test_activations_that_no_matrix_takes_are_refused() -> None:
    kinds = plan_kinds(PROGRAM, "bf16", chosen={"lm_head.weight": "float32"})
    with pytest.raises(SettingsError, match=r"activations is 'int8'.*'bf16'"):
        plan_activations(kinds, "bf16", "int8", "amx")


@pytest.mark.parametrize("variant", [*VARIANTS, "whisper"])
def test_costs_are_known_before_any_weight_is_read(
    variant: str, checkpoint: CheckpointMaker
) -> None:
    program = program_of(checkpoint(variant))
    weights = LoadedWeights(
        {name: as_weight(values_of(name, shape)) for name, shape in program.all_shapes.items()}
    )
    flat = program.take_weights(weights, folder="")
    for i, kind in enumerate(KINDS):
        kv_dtype, disabled = KV_TYPES[i % 3], ("merge-linears",) if i % 2 else ()
        kinds = plan_kinds(program, kind)
        planned = planned_step_costs(program, kinds, kv_dtype=kv_dtype, disable_pass=disabled)
        made = options(weight_dtype=kind, kv_dtype=kv_dtype, disable_pass=disabled, kinds={})
        assert CpuExecutor(program, flat, made).step_costs() == planned


def test_costs_of_a_mixture_are_those_of_its_packed_matrices() -> None:
    weights = Lazy(PROGRAM)
    kinds = plan_kinds(PROGRAM, "float32", own=own_kinds(PROGRAM, weights), chosen=CHOSEN)
    planned = planned_step_costs(PROGRAM, kinds, kv_dtype="float32")
    assert not weights.reads
    executor = CpuExecutor(PROGRAM, weights, options())
    assert executor.step_costs() == planned
