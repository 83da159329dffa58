"""docs/adding.md describes additions completely: each is made in a copy of the package and used."""

import ctypes
import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.checkpoints import make_checkpoint
from tests.overlay import ROOT, Overlay, edited

PAGE = (ROOT / "docs/adding.md").read_text(encoding="utf-8")

GENERATE = """
import sys
from galley import LLM, SamplingParams
for folder in sys.argv[1:]:
    with LLM(folder, threads=1, kv_cache_tokens=256, dtype="float32", weight_cache=False) as llm:
        print(llm.generate([[5, 6, 7]], SamplingParams(temperature=0.0, max_tokens=9))[0].token_ids)
"""


@pytest.fixture
def overlay(tmp_path: Path) -> Overlay:
    return Overlay(tmp_path / "copy")


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("models"), "llama")


def named_in(kind: str) -> str:
    """Return the page's text on an addition."""
    [item] = re.findall(rf"^- {re.escape(kind)}[^\n]*(?:\n  [^\n]*)*", PAGE, flags=re.MULTILINE)
    return str(item)


def check_named(touched: list[str], kind: str, most: int) -> None:
    """Check that the page's text on an addition names each file, or its folder if it is new."""
    documented = named_in(kind)
    assert len(touched) <= most
    for path in touched:
        file = path.removeprefix("native/")
        assert f"`{path}`" in documented or f"`{Path(file).parent}/`" in documented, path


def check_same(overlay: Overlay, one: Path, other: Path) -> None:
    """Both checkpoints generate the same tokens."""
    generated = overlay.run(GENERATE, str(one), str(other)).splitlines()
    assert generated[0].count(",") == 8
    assert generated[0] == generated[1]


OP = """
import numpy as np
from galley.formats.weights import LoadedWeights
from galley.graph.passes import run_passes
from galley.graph.trace import trace
from galley.ops.batch import Batch
from galley.ops.executor import ExecutorOptions, forward
from galley.ops.reference import ReferenceExecutor
from tests.native.harness import as_weight

def describe(g):
    return g.linear(g.select_rows(g.squared_relu(g.embed("x", vocab=8, width=6))), "head", 6)

program = trace(describe, max_positions=8)
x = np.random.default_rng(0).standard_normal((8, 6), dtype=np.float32)
weights = LoadedWeights({"x": as_weight(x), "head": as_weight(np.eye(6, dtype=np.float32))})
options = ExecutorOptions(
    dtype="float32", weight_dtype="float32", kv_dtype="float32", device="cpu", threads=1
)
executor = ReferenceExecutor(run_passes(program, ()), weights, options)
executor.allocate_kv(1)
rows = np.arange(5)
got = forward(executor, Batch(rows, rows, np.array([0, 5]), (), rows))
assert np.array_equal(got, np.maximum(x[:5], 0) ** 2), got
print("right")
"""

LOOP = """void squared_relu(const float* x, const float*, float, int64_t width, float* y) {
    for (int64_t i = 0; i < width; i += kLanes) {
        const Floats v = max(load_some(x + i, width - i), splat(0.0f));
        store_some(y + i, v * v, width - i);
    }
}

"""

KERNEL = """
#include "elementwise.cpp"
extern "C" int run(const float* x, int64_t width, float* y) {
    using galley::GALLEY_ISA::kElementwise;
    for (const auto* op = kElementwise; op->name; ++op)
        if (std::string(op->name) == "squared_relu") return op->run(x, nullptr, 0, width, y), 1;
    return 0;
}
"""


def test_an_elementwise_op_takes_four_files(overlay: Overlay, tmp_path: Path) -> None:
    overlay.edit(
        "graph/signatures.py",
        (
            '    "scale": _elementwise(1, "factor"),\n',
            '    "scale": _elementwise(1, "factor"),\n    "squared_relu": _elementwise(1),\n',
        ),
    )
    overlay.edit(
        "ops/reference_elementwise.py",
        (
            "def _add(op",
            "def _squared_relu(op: Op, x: torch.Tensor) -> torch.Tensor:\n"
            "    return torch.relu(x) ** 2\n\n\ndef _add(op",
        ),
        ('    "add": _add,\n', '    "add": _add,\n    "squared_relu": _squared_relu,\n'),
    )
    overlay.edit(
        "graph/trace.py",
        (
            "    def silu_mul(self",
            "    def squared_relu(self, x: Buffer) -> Buffer:\n"
            '        """relu(x)^2."""\n'
            '        return self._emit("squared_relu", (x,), x.width)\n\n    def silu_mul(self',
        ),
    )
    assert overlay.run(OP) == "right\n"
    source = (ROOT / "native/kernels/elementwise.cpp").read_text(encoding="utf-8")
    native = edited(
        source,
        [
            ("void scale(const float* x", f"{LOOP}void scale(const float* x"),
            ('    {"add", 2', '    {"squared_relu", 1, false, 1, squared_relu},\n    {"add", 2'),
        ],
    )
    check_native(native, tmp_path)
    check_named([*overlay.touched, "native/kernels/elementwise.cpp"], "An elementwise op", most=4)


def check_native(text: str, folder: Path) -> None:
    """Check that the file, compiled alone, lists the op, whose loop is correct to the last lane."""
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    (folder / "elementwise.cpp").write_text(text, encoding="utf-8")
    (folder / "kernel.cpp").write_text(f"#include <string>\n{KERNEL}", encoding="utf-8")
    library = folder / "kernel.so"
    flags = ["-std=c++20", "-O1", "-shared", "-fPIC", "-ffp-contract=off", "-DGALLEY_ISA=portable"]
    flags += ['-DGALLEY_NAME="portable"', '-DGALLEY_SIMD="simd/portable.hpp"']
    include = [f"-I{ROOT / 'native/kernels'}", f"-I{ROOT / 'native'}"]
    command = [compiler, *flags, *include, str(folder / "kernel.cpp"), "-o", str(library)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    x = np.random.default_rng(0).standard_normal(39, dtype=np.float32)
    y = np.full(40, np.nan, dtype=np.float32)
    pointers = [array.ctypes.data_as(ctypes.c_void_p) for array in (x, y)]
    run = ctypes.CDLL(str(library)).run
    assert run(pointers[0], ctypes.c_int64(len(x)), pointers[1]) == 1
    assert np.array_equal(y[:39], np.maximum(x, 0) ** 2)
    assert np.isnan(y[39])


def test_a_family_takes_a_page_and_a_line(overlay: Overlay, llama: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(llama, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "seed_oss", "attention_bias": False}
    (folder / "config.json").write_text(json.dumps(config))
    page = (ROOT / "tests/models/seed_oss.py").read_text(encoding="utf-8")
    overlay.add("models/seed_oss.py", page)
    line = '    "smollm3": "galley.models.smollm3",\n'
    overlay.edit("models/registry.py", (line, f'    "seed_oss": "galley.models.seed_oss",\n{line}'))
    check_same(overlay, folder, llama)
    check_named(overlay.touched, "A model family", most=2)


READER = '''"""Checkpoints whose tensors are in numpy's archive."""

import hashlib

import numpy as np

from galley.formats.checkpoint import Checkpoint
from galley.formats.weights import DenseWeight, LoadedWeights, Weights

FILE = "model.npz"


class NumpyCheckpoint(Checkpoint):
    """See :class:`galley.formats.reader.CheckpointReader`."""

    def weights(self) -> Weights:
        """See :class:`Checkpoint`."""
        with np.load(self.folder / FILE, allow_pickle=False) as file:
            return LoadedWeights({name: _dense(name, file[name]) for name in file.files})

    def content_hash(self) -> str:
        """See :class:`Checkpoint`."""
        return hashlib.sha256((self.folder / FILE).read_bytes()).hexdigest()

    outline = state = content_hash


def _dense(name, array):
    return DenseWeight(name, "F32", array.shape, np.ascontiguousarray(array).reshape(-1).view("u1"))
'''


def test_a_checkpoint_format_takes_a_reader_and_a_line(
    overlay: Overlay, llama: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(llama, tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    np.savez(folder / "model.npz", **{n: t.astype(np.float32) for n, t in tensors.items()})
    (folder / "model.safetensors").unlink()
    overlay.add("formats/numpy_archive.py", READER)
    overlay.edit(
        "formats/reader.py",
        (
            "from galley.formats.weights import Weights\n",
            "from galley.formats.numpy_archive import FILE, NumpyCheckpoint\n"
            "from galley.formats.weights import Weights\n",
        ),
        (
            "    if is_gguf(path):\n",
            "    if (path / FILE).exists():\n        return NumpyCheckpoint.open(path)\n"
            "    if is_gguf(path):\n",
        ),
    )
    check_same(overlay, folder, llama)
    check_named(overlay.touched, "A checkpoint format", most=2)


PARSER = '''"""Calls as ``<call>{"name": ..., "arguments": {...}}</call>``."""

from galley.tools.parser import Parser, Steps
from galley.tools.syntax import ARGUMENTS, NAME, CallSyntax

BEGIN, END = "<call>", "</call>"


def syntax(template: str) -> CallSyntax:
    """As ``template`` writes calls."""
    return CallSyntax((BEGIN, '{"name": "', NAME, '", "arguments": ', ARGUMENTS, "}", END))


class AngleParser(Parser):
    """Text and calls in any order."""

    MARKERS = (BEGIN, END)

    def _answer(self) -> Steps[None]:
        while (yield from self._text_until(BEGIN)) is not None:
            yield from self._attempt(self._call())

    def _call(self) -> Steps[None]:
        yield from self._json_call()
        yield from self._expect(END)
'''

PARSE = """
from galley.settings.config import Settings
from galley.tools.formats import FORMATS, _calls_of
from tests.tools.answers import read

answer = 'I look.<call>{"name": "get_time", "arguments": {"zone": "<x>"}}</call>'
for cut in range(len(answer)):
    found = read("angle", [answer[:cut], answer[cut:]])
    assert found == ("I look.", "", [("get_time", {"zone": "<x>"})], []), (cut, found)
assert Settings(tool_parser="angle").tool_parser == "angle"
assert _calls_of("{{ '<call>' }}") == "angle"
print("right")
"""


def test_a_parser_of_calls_takes_three_files(overlay: Overlay) -> None:
    overlay.add("tools/angle.py", PARSER)
    overlay.edit(
        "tools/formats.py",
        ("from galley.tools import deepseek, ", "from galley.tools import angle, deepseek, "),
        (
            '    "deepseek": Format(',
            '    "angle": Format(angle.AngleParser, angle.syntax, ((angle.BEGIN,),)),\n'
            '    "deepseek": Format(',
        ),
    )
    overlay.edit("settings/engine.py", ('    "deepseek",\n', '    "angle",\n    "deepseek",\n'))
    assert overlay.run(PARSE) == "right\n"
    check_named(overlay.touched, "A tool-call format", most=3)
