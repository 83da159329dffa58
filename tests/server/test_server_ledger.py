"""The memory ledger that `galley serve` prints before loading, and its refusals with remedies."""

import json
import math
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from galley.models.registry import build_program
from galley.runtimes.library_memory import planned_ledger
from galley.server import ledger as server_ledger
from galley.server.ledger import ledger_lines
from galley.types.model_info import Ledger
from tests.checkpoints import make_tokenizer
from tests.server.conftest import CONTEXT
from tests.server.containers import memory_limit
from tests.server.serving import Server

pytestmark = pytest.mark.xdist_group("server_ledger")

GIB = 2**30
PARTS = ("weights", "kv", "buffers", "reserve", "available")
BILLION: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 32000,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 14,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "eos_token_id": 0,
}


@pytest.fixture(scope="module")
def billion(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of 1.8 GB of bfloat16 zeros, in a sparse file that uses no disk space."""
    folder = tmp_path_factory.mktemp("billion")
    (folder / "config.json").write_text(json.dumps(BILLION))
    make_tokenizer(folder)
    entries, end = {}, 0
    for name, shape in build_program(BILLION).all_shapes.items():
        begin, end = end, end + 2 * math.prod(shape)
        entries[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    header = json.dumps(entries).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + end)
    return folder


def test_one_ledger_and_one_ready(model: Path, tmp_path: Path) -> None:
    with Server(model, tmp_path / "log", kv_cache_tokens=4 * CONTEXT, threads=1) as server:
        log, metrics = server.log, server.metrics()
    assert len(re.findall(r"\bready\b", log)) == 1
    before, _, after = log.partition("  total ")
    assert "llama, 0." in before
    assert "executor cpu (" in before
    assert "1 thread\n" in before
    assert f"{4 * CONTEXT:,} tokens of " in before
    assert "available" in after.splitlines()[0]
    # Nothing is loaded before the ledger is printed.
    assert " load " not in before
    assert " load " in after
    fitting = re.search(r"requests +(.*), at a time", log)
    assert fitting is not None
    assert f"4 of {CONTEXT:,} tokens" in fitting[1]
    parts = {part: metrics[f"galley_planned_memory_bytes{{part={part}}}"] for part in PARTS}
    assert sum(parts[part] for part in PARTS[:-1]) < parts["available"]
    assert parts["kv"] > 0
    assert any(name.startswith("galley_build_info") for name in metrics)


def text_ledger(**fields: Any) -> Ledger:
    """Return the ledger of a language model, with these fields."""
    usual = {"family": "llama", "executor": "cpu", "threads": 1, "weights": 1}
    sizes = {"parameters": 1, "max_model_len": 8, "kv_tokens": 8, "kv": 8}
    return planned_ledger(**(usual | sizes | fields))


@pytest.mark.parametrize(
    ("inputs", "static", "said"),
    [
        ("float32", 0, "float32, not rounded"),
        (
            "bfloat16",
            0,
            "rounded to bfloat16; changed 0.6 % of SmolLM2-135M-Instruct's likeliest tokens",
        ),
        (
            "int8",
            0,
            "rounded to int8, the largest of each group to 16 bits; changed 1.5 % of SmolLM2-135M-",
        ),
        (
            "int8",
            3,
            "rounded to int8, the largest of each group to 16 bits, of 3 matrices by the checkpoint's "
            "static scales; galley eval quality m",
        ),
    ],
)
def test_the_ledger_says_how_inputs_are_rounded_and_what_that_lost_where_it_was_measured(
    inputs: str, static: int, said: str
) -> None:
    ledger = text_ledger(inputs=inputs, static_inputs=static)
    [line] = [line for line in ledger_lines("m", ledger) if line.startswith("  inputs ")]
    assert line.removeprefix("  inputs     ").startswith(said)
    assert line.endswith("galley eval quality m measures the loss") == (inputs != "float32")


def test_what_rounding_lost_is_what_the_page_says() -> None:
    page = (Path(__file__).parents[2] / "docs/operations/quality.md").read_text(encoding="utf-8")
    assert server_ledger._MEASURED_WITH in page
    for inputs, changed in server_ledger._MEASURED.items():
        assert re.search(rf"^\| {inputs}\b.*\| {100 - changed:.1f} % \|$", page, re.MULTILINE)


@pytest.fixture(params=["container", "ulimit -v"])
def limited(request: pytest.FixtureRequest) -> Iterator[Callable[[], None]]:
    """Limit the memory of a starting process: too little for bfloat16, enough for int4."""
    if request.param == "container":
        with memory_limit(GIB) as admit:
            yield lambda: admit(0)
    else:
        limit = 3 * GIB + GIB // 4  # of addresses: mapped files count, too
        yield lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def test_the_ledger_of_several_gpus_says_what_each_has() -> None:
    """The reserve is for processes that are on none of them."""
    sizes = {"weights": 12 * GIB, "kv": 6 * GIB, "buffers": 2 * GIB, "reserve": GIB}
    ledger = text_ledger(executor="gpu", device="cuda", ranks=2, available=48 * GIB, **sizes)
    lines = "\n".join(ledger_lines("m", ledger))
    assert re.search(r"each GPU +10 GiB +of 24 GiB", lines), lines
    assert "executor gpu, 2 ranks of 1 thread" in lines
    whole = msgspec.structs.replace(ledger, ranks=1)
    assert "each GPU" not in "\n".join(ledger_lines("m", whole))


def test_what_does_not_fit_is_refused_before_it_is_loaded(
    billion: Path, limited: Callable[[], None]
) -> None:
    command = [sys.executable, "-m", "galley", "serve", str(billion), "--port", "0"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, preexec_fn=limited, check=False
    )
    assert done.returncode == 1, done.stderr
    assert done.stderr.count("does not fit in memory") == 1
    assert re.search(r"needs [\d.]+ GiB .*bf16 weights [\d.]+ GiB.*are available", done.stderr)
    changes = re.findall(r"^  \d\. (.*)$", done.stderr, re.MULTILINE)
    assert len(changes) == 3
    assert changes[0].startswith("--weight-dtype ")
    assert "Traceback" not in done.stderr
    _goes_on([*command, *changes[0].partition(" (")[0].split()], limited)


def _goes_on(command: list[str], limited: Callable[[], None]) -> None:
    """The server's ledger fits, so it starts to load."""
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=limited,
    ) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if "  total " in line:
                process.kill()
                return
        raise AssertionError("".join(lines))


def test_several_models_are_not_promised_the_same_memory(model: Path, tmp_path: Path) -> None:
    copies = [f"{name}={shutil.copytree(model, tmp_path / name)}" for name in ("one", "two")]
    command = [sys.executable, "-m", "galley", "serve", *copies, "--port", "0", "--threads", "1"]
    with memory_limit(GIB) as admit:
        done = subprocess.run(
            [*command, "--kv-cache-tokens", "1000000"],  # 427 MiB: each alone fits in 1 GiB
            capture_output=True,
            text=True,
            timeout=60,
            preexec_fn=lambda: admit(0),
            check=False,
        )
    assert done.returncode == 1, done.stderr
    assert re.search(r"(one|two) does not fit in memory: it needs 6\d\d", done.stderr), done.stderr
    assert done.stdout.count("  total ") == 1  # the ledger of the other model
