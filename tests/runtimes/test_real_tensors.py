"""Published ONNX models of a classifier, a detector and a recognizer: outputs as by onnxruntime alone."""

from typing import Any, Final, NamedTuple

import numpy as np
import onnxruntime
import pytest

from tests.real import find
from tests.runtimes.onnx_engines import add, arrays_of, engine_of, steps

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("real_tensors")]


class Case(NamedTuple):
    """A file of a package, and the shape of a row of its input."""

    package: str
    file: str
    row: tuple[int, ...]


CASES: Final = (
    Case("magika", "model.onnx", (2048,)),
    Case("rapidocr", "*det*.onnx", (3, 64, 96)),
    Case("rapidocr", "*cls*.onnx", (3, 48, 192)),
    Case("rapidocr", "*rec*.onnx", (3, 48, 160)),
)


def rows_of(case: Case, datatype: str, count: int, seed: int) -> Any:
    """Return random rows: bytes of a file for the classifier, pixels for the others."""
    rng, shape = np.random.default_rng(seed), (count, *case.row)
    if "int" in datatype:
        return rng.integers(0, 256, shape).astype(np.int32)
    return rng.uniform(-1, 1, shape).astype(np.float32)


@pytest.mark.parametrize("case", CASES, ids=[f"{case.package} {case.file}" for case in CASES])
def test_outputs_are_those_of_the_library_alone(case: Case) -> None:
    """Bit for bit: each request alone, and what was combined as the library computes it combined."""
    path = find(case.package, case.file)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    alone = onnxruntime.InferenceSession(path, options)
    [given] = alone.get_inputs()
    engine = engine_of(path)
    assert engine.info.tensors is not None
    for count in (1, 3):
        requests = [rows_of(case, given.type, 1, seed) for seed in range(count)]
        for number, rows in enumerate(requests):
            add(engine, str(number), {given.name: rows})
        outputs, sizes = steps(engine)
        assert sum(sizes) == count
        got = [arrays_of(outputs[str(number)]) for number in range(count)]
        begin = 0
        for size in sizes:
            together = {given.name: np.concatenate(requests[begin : begin + size])}
            for spec, expected in zip(alone.get_outputs(), alone.run(None, together), strict=True):
                found = np.concatenate([one[spec.name] for one in got[begin : begin + size]])
                assert found.dtype == expected.dtype
                assert found.tobytes() == expected.tobytes()
            begin += size
