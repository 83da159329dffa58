"""The arithmetic from times to the table, on numbers worked out by hand."""

import pytest

from galley.bench.report import Machine, Run, Spread, Step, make_point
from galley.types.model_info import StepCosts

COSTS = StepCosts(weight_bytes=1000, kv_bytes_per_token=10, row_operations=200, logit_operations=50)


def machine() -> Machine:
    return Machine(
        cpu="a cpu",
        isa="portable",
        cores=2,
        threads=2,
        caches=(),
        read_huge=Spread(4000.0, 1.0, 9000.0),
        read_small=Spread(3000.0, 1.0, 9000.0),
        operations={
            "int8": Spread(2000.0, 1.0, 9000.0),
            "bf16": Spread(1000.0, 1.0, 9000.0),
            "float32": Spread(500.0, 1.0, 9000.0),
        },
    )


def decode_run(seconds: float, read_rate: float = 4000.0) -> Run:
    """Return two steps of two sequences with 3 and 4, then 4 and 5 tokens of context."""
    return Run([Step(seconds, 0.75 * seconds, 2, 2, context) for context in (7, 9)], read_rate)


def test_a_spread_is_median_and_extremes() -> None:
    assert Spread.of([5.0, 1.0, 2.0]) == Spread(2.0, 1.0, 5.0)
    assert Spread.of([1.0, 2.0]) == Spread(1.5, 1.0, 2.0)


def test_a_step_reads_weights_and_context_and_multiplies_rows_and_wanted_rows() -> None:
    step = Step(seconds=1.0, forward_seconds=0.5, rows=16, wanted=1, context=20)
    assert step.bytes(COSTS) == 1000 + 200
    assert step.operations(COSTS) == 16 * 200 + 50


def test_rates_are_over_whole_repeats() -> None:
    runs = [decode_run(1.0), decode_run(0.5), decode_run(0.25)]
    point = make_point("decode", 2, runs, COSTS, machine(), "int8")
    assert (point.work, point.batch, point.tokens) == ("decode", 2, 2)
    assert point.tokens_per_s == Spread(4.0, 2.0, 8.0)
    assert point.step_ms == Spread(500.0, 250.0, 1000.0)
    assert point.python_ms == Spread(125.0, 62.5, 250.0)
    assert point.bytes_per_s == Spread(2160.0, 1080.0, 4320.0)  # 1070 + 1090 in 1 s
    assert point.operations_per_s == Spread(1000.0, 500.0, 2000.0)  # 2 * (400 + 100) in 1 s


def test_unequal_steps_weigh_by_their_time() -> None:
    run = Run([Step(0.1, 0.1, 300, 0, 300), Step(0.3, 0.3, 100, 1, 400)], 1.0)
    point = make_point("prefill", 1, [run], COSTS, machine(), "bfloat16")
    assert point.tokens == 400
    assert point.tokens_per_s.median == pytest.approx(1000.0)
    assert point.bytes_per_s.median == pytest.approx((4000 + 5000) / 0.4)


@pytest.mark.parametrize(
    ("activations", "peak"), [("int8", 2000.0), ("bfloat16", 1000.0), ("float32", 500.0)]
)
def test_the_share_of_arithmetic_is_of_the_products_own_peak(activations: str, peak: float) -> None:
    point = make_point("decode", 2, [decode_run(1.0)], COSTS, machine(), activations)
    assert point.operation_share == pytest.approx(500 / peak)


def test_each_repeat_is_compared_with_the_read_rate_measured_next_to_it() -> None:
    runs = [decode_run(1.0, 2000.0), decode_run(0.5, 8000.0), decode_run(1.0, 1200.0)]
    point = make_point("decode", 2, runs, COSTS, machine(), "int8")
    assert point.read_share == Spread(1080 / 2000, 2160 / 8000, 1080 / 1200)
