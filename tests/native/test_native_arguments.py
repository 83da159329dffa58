"""An op's arguments are checked against the arena when it is appended, before any step."""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest

from galley import _native
from tests.native.harness import aligned, as_weight, input_layout, pack_as

ARENA: Final = 1024
VOCAB: Final = 8
WIDTH: Final = 32
ROW: Final = 4 * WIDTH
X, Y, Z, S = ((i * ROW, ROW, 0) for i in range(4))
ONES: Final = np.ones(WIDTH, np.float32)
FOUR: Final = np.ones(4, np.float32)
KERNELS: Final = np.ones(4 * WIDTH, np.float32)
"""Kernels of a convolution, four numbers each."""
ROUNDED: Final = (512, 128, 0)
"""The slot of rows in the form that ``layout()`` describes."""
WORK: Final = (0, ARENA, 0)
"""Work space for two choices: rows for gate, rows for up, and their products, each 128 bytes."""

ALONE: Final = _native.Communicator(aligned(_native.Communicator.bytes(1, 128)), 0, 1, 128, 1000)
"""The only rank, whose slots have one row of a buffer."""

BIASES: Final = (np.ones(2 * WIDTH, np.float32),) * 3
ANGLES: Final = [1.0, 0.5, 0.25, 0.125]
"""Angles for heads of 8 columns: keys are 2 heads wide, queries 4."""


def ops() -> dict[str, tuple[Any, ...]]:
    """Return valid arguments of each op."""
    matrix = pack_as("int8", as_weight(np.ones((WIDTH, WIDTH), np.float32)))
    rounded = input_layout(matrix, "int8")
    expert = [(matrix, rounded)] * 2
    return {
        "embed": (matrix, Y),
        "embed_positions": (np.ones(3 * WIDTH, np.float32), 1, WIDTH, Y),
        "embed_types": (np.ones(2 * WIDTH, np.float32), WIDTH, Y),
        "features": (WIDTH, Y),
        "select_rows": (WIDTH, X, Y),
        "quantize_input": (rounded, X, ROUNDED),
        "linear": (matrix, None, rounded, ROUNDED, Y),
        "rms_norm": (ONES, 1e-5, WIDTH, None, X, Y),
        "layer_norm": (ONES, ONES, 1e-5, WIDTH, None, X, Y),
        "add_rms_norm": (ONES, 1e-5, WIDTH, rounded, X, Y, Z, ROUNDED),
        "add_layer_norm": (ONES, None, 1e-5, WIDTH, None, X, Y, Z, S),
        "silu_mul": (WIDTH, rounded, X, Y, ROUNDED),
        "gelu_tanh_mul": (WIDTH, rounded, X, Y, ROUNDED),
        "gelu_mul": (WIDTH, rounded, X, Y, ROUNDED),
        "scale": (2.0, WIDTH, None, X, Y),
        "soft_cap": (30.0, WIDTH, None, X, Y),
        "gelu_tanh": (WIDTH, None, X, Y),
        "gelu": (WIDTH, None, X, Y),
        "head_columns": (1, 2, 4, WIDTH // 2, X, Y),
        "add": (WIDTH, None, X, Y, Z),
        "rope": (ANGLES, 1.0, True, 8, WIDTH, X, Y),
        "im2col": (8, 3, 1, X, Y),
        "lora": ([(0, 0, 8), (1, 8, 24)], WIDTH, WIDTH, X, Y, X),
        "scale_queries_by_position": (8, 0.1, WIDTH, X, Y),
        "attention": (None, 0, 4, 1.0, 0, False, 0.0, X, Y, Z, S),
        "rope_attention": (ANGLES, 1.0, False, None, 0, 4, 1.0, 0, False, 0.0, X, Y, Z, S, X),
        "encoder_attention": (4, 2, 8, 8, 1.0, -1, 3, True, X, Y, Z, S),
        "cross_kv": (0, X, Y),
        "cross_attention": (0, 4, 1.0, X, Y),
        "cross_weights": (0, 4, [1, 2], 0, 1.0, X),
        "route": (None, 8, 2, "softmax", True, 1.0, 4, 2, 1, X, Y),
        "experts": (
            *(expert, expert, expert, *BIASES, 2, 1.0, 0.0, False),
            *([], None, None, WORK, X, Y, Z),
        ),
        "all_gather": (ALONE, [WIDTH], False, X, Y),
        "embed_part": (matrix, [matrix.outputs], ALONE, Y),
        "sigmoid_scale": (WIDTH, X, Y, Z),
        "sigmoid_mul": (WIDTH, None, X, Y, Z),
        "causal_conv": (KERNELS, ONES, 0, 4, WIDTH, X, Y),
        "ssm": (FOUR, FOUR, FOUR, 1, 4, 2, X, Y, Z, S, X),
        "delta_rule": (FOUR, FOUR, 1, 4, 2, X, Y, Z, S, X, Y),
    }


NAMES: Final = sorted(ops())
ONE_COLUMN: Final = ("sigmoid_scale", 2)
"""An op for which hardly any buffer is too narrow."""
LAYER_AT: Final = {
    "attention": 1,
    "rope_attention": 4,
    "cross_kv": 0,
    "cross_attention": 0,
    "cross_weights": 0,
}


def append(name: str, arguments: tuple[Any, ...]) -> None:
    runtime = _native.Runtime("portable", 1, [])
    runtime.add_kv_layer(2, 8, 8, "float32", 0, 0)
    runtime.add_state_layer(3, WIDTH)  # of a convolution over four rows
    runtime.add_state_layer(16, 8)  # of four heads
    getattr(_native.Program(runtime, ARENA, VOCAB), name)(*arguments)


def slots_of(arguments: tuple[Any, ...]) -> list[int]:
    return [i for i, a in enumerate(arguments) if isinstance(a, tuple)]


def with_slot(arguments: tuple[Any, ...], i: int, slot: tuple[int, int, int]) -> tuple[Any, ...]:
    return (*arguments[:i], slot, *arguments[i + 1 :])


@pytest.mark.parametrize("name", NAMES)
def test_what_fits_is_taken(name: str) -> None:
    append(name, ops()[name])


Wrong = Callable[[int, int, int], tuple[int, int, int]]
WRONG: Final[dict[str, tuple[Wrong, str]]] = {
    "beyond the end": (lambda at, stride, _: (ARENA - stride + 4, stride, 0), "outside"),
    "before the start": (lambda at, stride, _: (-2, stride, 0), "outside"),
    "overflowing": (lambda at, stride, _: (2**63 - 8, stride, 0), "outside"),
    "wider than the arena": (lambda at, stride, _: (0, 2**62, 0), "outside"),
    "too narrow": (lambda at, stride, _: (at, 12, 0), "narrower"),
    "a column too late": (lambda at, stride, _: (at, stride, stride - 8), "narrower"),
    "a negative column": (lambda at, stride, _: (at, stride, -4), "narrower"),
    "half a float": (lambda at, stride, _: (at, stride + 2, 0), "whole floats"),
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("name", NAMES)
def test_buffers_that_do_not_lie_in_the_arena_are_refused(name: str, wrong: str) -> None:
    change, message = WRONG[wrong]
    arguments = ops()[name]
    for i in slots_of(arguments):
        if (name, i) == ONE_COLUMN and message == "narrower":
            continue
        with pytest.raises(ValueError, match=message):
            append(name, with_slot(arguments, i, change(*arguments[i])))


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_as_wide_as_the_vocabulary_and_not_read_before_they_are_written(
    name: str,
) -> None:
    arguments = ops()[name]
    for i in slots_of(arguments):
        with pytest.raises(ValueError, match=r"logits are"):
            append(name, with_slot(arguments, i, (_native.LOGITS, ROW, 0)))


@pytest.mark.parametrize("name", LAYER_AT)
def test_layers_that_do_not_exist_are_refused(name: str) -> None:
    at, arguments = LAYER_AT[name], ops()[name]
    for layer in (-1, 1, 2**40):
        changed = (*arguments[:at], layer, *arguments[at + 1 :])
        with pytest.raises(ValueError, match="a KV layer does not exist"):
            append(name, changed)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("rms_norm", (ONES, 1e-5, 24, None, X, Y), "do not divide"),
        ("rms_norm", (ONES[:0], 1e-5, WIDTH, None, X, Y), "do not divide"),
        ("layer_norm", (ONES, None, 1e-5, 5, None, X, Y), "do not divide"),
        ("layer_norm", (ONES, None, 1e-5, 0, None, X, Y), "do not divide"),
        ("head_columns", (2, 3, 4, 12, X, Y), "does not have the columns"),
        ("head_columns", (0, 3, 2**62, 12, X, Y), "does not have the columns"),
        ("head_columns", (0, 3, 8, 16, X, Y), "do not divide"),
        ("head_columns", (0, 2, 8, WIDTH, X, Y), "narrower"),
        ("gelu", (0, None, X, Y), "no columns"),
        ("gelu", (WIDTH + 1, None, X, Y), "narrower"),
        ("rope", (ANGLES, 1.0, False, 8, 12, X, Y), "do not divide"),
        ("rope", (ANGLES, 1.0, False, 0, WIDTH, X, Y), "do not divide"),
        ("rope", ([], 1.0, False, 8, WIDTH, X, Y), "angles"),
        ("rope", (ANGLES, 1.0, False, 4, WIDTH, X, Y), "angles"),
        ("im2col", (8, 3, 0, X, Y), "no size"),
        ("im2col", (8, 5, 1, X, Y), "narrower"),
        ("embed_positions", (ONES, 0, 24, Y), "whole rows"),
        ("scale_queries_by_position", (0, 0.1, WIDTH, X, Y), "not positive"),
        ("attention", (None, 0, 3, 1.0, 0, False, 0.0, X, Y, Z, S), "do not divide"),
        ("attention", (None, 0, 0, 1.0, 0, False, 0.0, X, Y, Z, S), "do not divide"),
        ("attention", (None, 0, 6, 1.0, 0, False, 0.0, X, Y, Z, S), "narrower"),
        ("attention", (ONES, 0, 4, 1.0, 0, False, 0.0, X, Y, Z, S), "one sink for each head"),
        ("attention", (None, 0, 4, 1.0, -1, False, 0.0, X, Y, Z, S), "negative"),
        ("attention", (None, 0, 4, 1.0, 0, False, -1.0, X, Y, Z, S), "negative"),
        (
            "rope_attention",
            ([*ANGLES, 1.0], 1.0, False, None, 0, 4, 1.0, 0, False, 0.0, X, Y, Z, S, X),
            "angles",
        ),
        ("encoder_attention", (4, 0, 8, 8, 1.0, -1, -1, True, X, Y, Z, S), "no columns"),
        ("route", (ONES, 8, 2, "softmax", True, 1.0, 4, 2, 1, X, Y), "bias has the wrong size"),
        ("route", (None, 8, 5, "softmax", True, 1.0, 4, 2, 1, X, Y), "more experts are chosen"),
        ("route", (None, 8, 2, "softmax", True, 1.0, 3, 2, 1, X, Y), "no whole groups"),
        ("route", (None, 8, 2, "softmax", True, 1.0, 4, 5, 1, X, Y), "more groups are kept"),
        ("route", (None, 8, 2, "softmax", True, 1.0, 4, 2, 3, X, Y), "not so many experts"),
        ("route", (None, 8, 2, "argmax", True, 1.0, 4, 2, 1, X, Y), "neither softmax nor sigmoid"),
        (
            "experts",
            ([], [], [], None, None, None, 1, 1.0, 0.0, False, [], None, None, WORK, X, Y, Z),
            "three matrices",
        ),
        ("all_gather", (ALONE, [WIDTH, WIDTH], False, X, Y), "one width for each rank"),
        ("all_gather", (ALONE, [0], False, X, Y), "no columns"),
        ("all_gather", (ALONE, [WIDTH + 1], False, X, Y), "wider than a slot"),
        ("sigmoid_scale", (WIDTH + 1, X, Y, Z), "narrower"),
        ("causal_conv", (KERNELS, None, 0, 3, WIDTH, X, Y), "one kernel for each channel"),
        ("causal_conv", (ONES, None, 0, 1, WIDTH, X, Y), "two rows at least"),
        ("causal_conv", (KERNELS, None, 1, 4, WIDTH, X, Y), "looks back"),
        ("causal_conv", (KERNELS, None, 2, 4, WIDTH, X, Y), "a state is out of range"),
        ("causal_conv", (KERNELS, FOUR, 0, 4, WIDTH, X, Y), "bias has the wrong size"),
        ("ssm", (FOUR, FOUR, ONES, 1, 4, 2, X, Y, Z, S, X), "one skip for each head"),
        ("ssm", (FOUR, FOUR, FOUR, -1, 4, 2, X, Y, Z, S, X), "a state is out of range"),
        ("delta_rule", (FOUR, FOUR, 1, 4, 3, X, Y, Z, S, X, Y), "evenly"),
        ("delta_rule", (FOUR, FOUR, 1, 0, 1, X, Y, Z, S, X, Y), "evenly"),
        ("delta_rule", (FOUR, ONES, 1, 4, 2, X, Y, Z, S, X, Y), "one decay for each head"),
        ("lora", ([(0, 0, 8)], WIDTH, WIDTH, X, Y, Z), "in its place"),
        ("lora", ([(0, 8, WIDTH)], WIDTH, WIDTH, X, Y, X), "do not lie in the buffer"),
        ("lora", ([(0, -4, 8)], WIDTH, WIDTH, X, Y, X), "do not lie in the buffer"),
        ("lora", ([(-1, 0, 8)], WIDTH, WIDTH, X, Y, X), "out of range"),
        ("lora", ([(0, 0, 8), (0, 8, 4)], WIDTH, WIDTH, X, Y, X), "two shapes"),
        ("lora", ([], WIDTH, WIDTH, X, Y, X), "no module"),
        ("lora", ([(0, 0, 8)], 0, WIDTH, X, Y, X), "no columns"),
        ("encoder_attention", (4, 2, 8, 8, 1.0, -2, 0, True, X, Y, Z, S), "negative"),
        ("embed_positions", (np.ones(3 * WIDTH, np.float32), 3, WIDTH, Y), "position 0"),
        ("embed_types", (ONES[:0], WIDTH, Y), "whole rows"),
        ("cross_weights", (0, 4, [4], 0, 1.0, X), "a chosen head does not exist"),
        ("cross_weights", (0, 4, [1], 1, 1.0, X), "do not follow"),
    ],
)
def test_widths_that_do_not_fit_are_refused(
    name: str, arguments: tuple[Any, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        append(name, arguments)


def test_experts_with_biases_have_no_scaled_inputs() -> None:
    arguments = list(ops()["experts"])
    arguments[next(i for i, argument in enumerate(arguments) if argument is False)] = True
    with pytest.raises(ValueError, match="experts with biases"):
        append("experts", tuple(arguments))


def test_logits_of_all_rows_need_room_for_all() -> None:
    runtime = _native.Runtime("portable", 1, [])
    table = _native.Packed("float32", 4, VOCAB)
    program = _native.Program(runtime, 0, VOCAB)
    program.embed(table, (_native.LOGITS, 4 * VOCAB, 0))
    runtime.allocate_kv(1)
    at = np.arange(4)
    step = (at, at, np.array([0, 4]), at[:0], at[:1])
    program.forward(*step, at, np.zeros((4, VOCAB), np.float32))
    with pytest.raises(ValueError, match="selects no rows"):
        program.forward(*step, at[:1], np.zeros((1, VOCAB), np.float32))


STATES: Final = [
    ([-1, 2, 0], None),
    ([-1, 1, 1, 2, 0], None),
    ([0, 2, 0], "unless it begins"),
    ([-1, 2, 2], "slot is out of range"),
    ([-1, 2, -1], "slot is out of range"),
    ([-1, 1, 0], "after its last row"),
    ([-1, 2, 1, 2, 0], "do not ascend"),
    ([-1, 0, 1, 2, 0], "do not ascend"),
    ([-1], "a slot, then rows and slots"),
    (None, "recurrent layers keep"),
]


@pytest.mark.parametrize(("states", "message"), STATES, ids=str)
def test_states_that_contradict_the_rows_are_refused(
    states: list[int] | None, message: str | None
) -> None:
    runtime = _native.Runtime("portable", 1, [])
    runtime.add_state_layer(3, WIDTH)
    program = _native.Program(runtime, ARENA, VOCAB)
    matrix = pack_as("float32", as_weight(np.ones((VOCAB, WIDTH), np.float32)))
    program.embed(matrix, X)
    program.causal_conv(KERNELS, None, 0, 4, WIDTH, X, Y)
    program.linear(matrix, None, None, Y, (_native.LOGITS, 4 * VOCAB, 0))
    runtime.allocate_kv(0, states=2)
    at = np.arange(2)
    given = None if states is None else (np.array(states), np.array([0, len(states)]))

    def run() -> None:
        tables = np.zeros(0, np.int64), np.zeros(1, np.int64)
        logits = np.zeros((2, VOCAB), np.float32)
        program.forward(at, at, np.array([0, 2]), *tables, at, logits, states=given)

    if message is None:
        run()
    else:
        with pytest.raises(ValueError, match=message):
            run()
