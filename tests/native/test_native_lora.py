"""Low-rank products of adapters on every instruction set: correct, and bits independent of the batch."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from galley import _native
from tests.native.harness import ISAS, Floats, as_weight, pack_as, round_bf16, round_f16
from tests.thorough import examples

ROUNDED = {"float32": lambda x: x, "bf16": round_bf16, "f16": round_f16}


def table(values: Floats) -> _native.Packed:
    """Return a packed embedding whose row t is that of token t."""
    return pack_as("float32", as_weight(values))


class Lora:
    """Two adjacent layers in one buffer; adapters in two slots change one or both."""

    def __init__(self, isa: str, kind: str, rank: int, depth: int, widths: tuple[int, int]) -> None:
        rng = np.random.default_rng(rank * 1000 + depth)
        self.runtime = _native.Runtime(isa, 2, [])
        self.x = rng.standard_normal((48, depth)).astype(np.float32)
        self.y = rng.standard_normal((48, sum(widths))).astype(np.float32)
        x_bytes, y_bytes = (-(-4 * width // 64) * 64 for width in (depth, sum(widths)))
        self.program = _native.Program(self.runtime, x_bytes + y_bytes, sum(widths))
        x, y = (0, x_bytes, 0), (x_bytes, y_bytes, 0)
        self.program.embed(table(self.x), x)
        self.program.embed(table(self.y), y)
        modules = [(0, 0, widths[0]), (1, widths[0], widths[1])]
        self.program.lora(modules, depth, sum(widths), y, x, y)
        self.program.select_rows(sum(widths), y, (_native.LOGITS, 4 * sum(widths), 0))
        self.runtime.add_kv_layer(1, 1, 1, "float32")  # otherwise steps have no tables
        self.runtime.allocate_kv(48)
        self.added = np.zeros((3, 48, sum(widths)))  # the last one has no adapter
        for slot, module in ((0, 0), (0, 1), (1, 1)):
            columns = slice(0, widths[0]) if module == 0 else slice(widths[0], None)
            a = ROUNDED[kind](rng.standard_normal((rank, depth)).astype(np.float32))
            b = ROUNDED[kind](rng.standard_normal((widths[module], rank)).astype(np.float32))
            packed = _native.joined([pack_as(kind, as_weight(a)), pack_as(kind, as_weight(b))])
            down, up = packed
            self.runtime.set_adapter(slot, module, down, up, 0.5)
            product = self.x.astype(np.float64) @ a.T.astype(np.float64) @ b.T
            self.added[slot, :, columns] = 0.5 * product

    def run(self, tokens: list[int], slots: list[int]) -> Floats:
        """Return a row for each token; sequences are runs of equal slots, of up to 16 rows."""
        starts, positions = [0], list[int]()
        for i, slot in enumerate(slots):
            begins = not i or slot != slots[i - 1] or len(positions) - starts[-1] == 16
            if begins and i:
                starts.append(i)
            positions.append(i - starts[-1])
        starts.append(len(tokens))
        worn = np.array([slots[start] for start in starts[:-1]])
        blocks = np.arange(len(worn))
        out = np.full((len(tokens), self.y.shape[1]), np.nan, np.float32)
        at = np.arange(len(tokens))
        self.program.forward(
            np.array(tokens),
            np.array(positions),
            np.array(starts),
            blocks,
            np.arange(len(worn) + 1),
            at,
            out,
            None,
            worn,
        )
        return out


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=examples(12))
@given(
    kind=st.sampled_from(list(ROUNDED)),
    rank=st.integers(1, 40),
    depth=st.integers(1, 70),
    widths=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    rows=st.lists(st.tuples(st.integers(0, 47), st.integers(-1, 1)), min_size=1, max_size=40),
)
def test_rows_get_what_their_adapter_adds(
    isa: str,
    kind: str,
    rank: int,
    depth: int,
    widths: tuple[int, int],
    rows: list[tuple[int, int]],
) -> None:
    lora = Lora(isa, kind, rank, depth, widths)
    tokens, slots = [token for token, _ in rows], [slot for _, slot in rows]
    got = lora.run(tokens, slots)
    expected = lora.y[tokens] + np.array([lora.added[slot, token] for token, slot in rows])
    assert np.abs(got - expected).max() <= 1e-5 * (1 + np.abs(expected).max()) * np.sqrt(depth)
    for i, (token, slot) in enumerate(rows):
        assert np.array_equal(lora.run([token], [slot])[0], got[i])


def test_factors_that_do_not_fit_are_refused() -> None:
    lora = Lora("portable", "float32", 4, 8, (6, 5))

    def factor(outputs: int, depth: int, kind: str = "float32") -> _native.Packed:
        return pack_as(kind, as_weight(np.ones((outputs, depth), np.float32)))

    for module, a, b, says in (
        (0, factor(4, 9), factor(6, 4), "do not fit"),
        (0, factor(4, 8), factor(5, 4), "do not fit"),
        (0, factor(4, 8), factor(6, 3), "do not fit"),
        (0, factor(4, 8, "bf16"), factor(6, 4), "are floats"),
        (0, factor(4, 8, "int8"), factor(6, 4, "int8"), "are floats"),
        (2, factor(4, 8), factor(6, 4), "does not exist"),
        (-1, factor(4, 8), factor(6, 4), "does not exist"),
    ):
        with pytest.raises(ValueError, match=says):
            lora.runtime.set_adapter(0, module, a, b, 1.0)
    for slot in (-1, 1 << 40):
        with pytest.raises(ValueError, match="out of range"):
            lora.runtime.set_adapter(slot, 0, factor(4, 8), factor(6, 4), 1.0)
        with pytest.raises(ValueError, match="out of range"):
            lora.runtime.clear_adapter(slot)
    with pytest.raises(ValueError, match="are floats"):
        _native.joined([factor(4, 8, "int8")])
    for slots in ([2], [-2]):
        with pytest.raises(ValueError, match="slot is empty"):
            lora.run([0], slots)
