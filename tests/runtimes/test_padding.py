"""Requests of different lengths in one batch."""

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from galley.errors import SettingsError
from tests.runtimes import onnx_files
from tests.runtimes.onnx_engines import add, arrays_of, engine_of, steps

MASK = '{"padding": {"mask": "mask"}}'


def inputs_of(length: int, rows: int = 1) -> dict[str, Any]:
    rng = np.random.default_rng(length)
    mask = np.ones((rows, length), np.int64)
    mask[:, -1] = 0  # a request may have a mask of its own
    return {"ids": rng.integers(0, 8, (rows, length)), "mask": mask}


def test_similar_lengths_are_computed_together(tmp_path: Path) -> None:
    path = onnx_files.masked(tmp_path / "m.onnx")
    engine, alone = engine_of(path, MASK), onnxruntime.InferenceSession(path)
    given = {
        f"{n}x{rows}": inputs_of(n, rows)
        for n, rows in ((3, 1), (16, 2), (9, 1), (17, 1), (32, 3), (33, 1))
    }
    for name, inputs in given.items():
        add(engine, name, inputs)
    outputs, rows = steps(engine)
    assert rows == [4, 4, 1]
    for name, inputs in given.items():
        y, vectors = alone.run(None, inputs)
        got = arrays_of(outputs[name])
        assert got["vectors"].tobytes() == vectors.tobytes()
        assert got["vectors"].shape == vectors.shape
        np.testing.assert_allclose(got["y"], y, rtol=1e-5, atol=1e-6)


def test_without_the_option_lengths_are_computed_apart(tmp_path: Path) -> None:
    engine = engine_of(onnx_files.masked(tmp_path / "m.onnx"))
    for name, length in (("a", 3), ("b", 4), ("c", 3)):
        add(engine, name, inputs_of(length))
    assert steps(engine)[1] == [2, 1]


def test_a_bad_request_fails_alone_in_a_padded_batch(tmp_path: Path) -> None:
    engine = engine_of(onnx_files.masked(tmp_path / "m.onnx"), MASK)
    add(engine, "good", inputs_of(5))
    add(engine, "bad", inputs_of(7) | {"ids": np.full((1, 7), 99)})
    # Its inputs differ in length, which is for the model to refuse.
    add(engine, "odd", inputs_of(6) | {"mask": np.ones((1, 4), np.int64)})
    outputs, _ = steps(engine)
    assert [outputs[n].finish_reason for n in ("good", "bad", "odd")] == ["stop", "error", "error"]
    assert outputs["bad"].refused


def test_only_the_outputs_that_are_requested_are_returned(tmp_path: Path) -> None:
    engine = engine_of(onnx_files.masked(tmp_path / "m.onnx"), MASK)
    add(engine, "a", inputs_of(5), "vectors")
    add(engine, "b", inputs_of(9), "y")
    outputs, rows = steps(engine)
    assert rows == [2]
    assert arrays_of(outputs["a"])["vectors"].shape == (1, 5, 4)
    assert list(arrays_of(outputs["b"])) == ["y"]


def test_instances_share_a_padded_batch(tmp_path: Path) -> None:
    path = onnx_files.masked(tmp_path / "m.onnx")
    engine, alone = (
        engine_of(path, MASK[:-1] + ', "instances": 2}'),
        onnxruntime.InferenceSession(path),
    )
    for n in (3, 5, 8):
        add(engine, str(n), inputs_of(n))
    outputs, rows = steps(engine)
    assert rows == [3]
    for n in (3, 5, 8):
        expected = alone.run(None, inputs_of(n))[1]
        assert arrays_of(outputs[str(n)])["vectors"].tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ('{"mask": "other"}', r"'other' is not an input whose axis 1 has any length; such are: 'ids', 'm"),
        ('{"mask": "mask", "axis": 2}', "'mask' is not an input whose axis 2 .*such are: none"),
        ('{"mask": "mask", "values": {"x": 1}}', "'x' is not an input"),
        ('{"mask": "mask", "values": {"ids": 0.5}}', "INT64 of 'ids' has no value 0.5"),
        ('{"mask": "mask", "values": {"mask": 1}}', "always filled with 0"),
        ('{"mask": "mask", "values": {"ids": 99}}', "takes none of the random inputs of the trial"),
        ('{"mask": "mask", "length": 3}', "length"),
        ('{"mask": "mask"}, "batch_invariant": true', "padding and batch_invariant are both set"),
        ('{"mask": "mask"}, "batching": "off"', "computed one by one: the options say so"),
    ],
)  # fmt: skip
def test_what_cannot_be_padded_is_refused(tmp_path: Path, options: str, says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        engine_of(onnx_files.masked(tmp_path / "m.onnx"), f'{{"padding": {options}}}')


def test_a_model_that_ignores_its_mask_is_refused(tmp_path: Path) -> None:
    path = onnx_files.masked(tmp_path / "m.onnx", ignores_mask=True)
    with pytest.raises(SettingsError, match="output 'y' depends on the padding"):
        engine_of(path, MASK)


def test_texts_are_not_padded(tmp_path: Path) -> None:
    path = onnx_files.identities(tmp_path / "types.onnx")
    with pytest.raises(SettingsError, match="'in_BYTES' has texts"):
        engine_of(path, '{"padding": {"mask": "in_INT64"}}')
