"""Hostile GGUF files: a typed error names file and field."""

import struct
from pathlib import Path
from typing import Any, Final

import gguf
import numpy as np
import pytest

from galley.engine.read_model import read_model
from galley.errors import ModelError
from galley.settings.engine import EngineSettings
from galley.text.template import ChatTemplate
from galley.text.tokenizer import Tokenizer
from tests.checkpoints import make_checkpoint
from tests.conftest import CheckpointMaker
from tests.formats.gguf_files import WIDE, rewritten, split, write_gguf

PEER_FILES: Final = Path(__file__).parent / "peer_files" / "gguf"
TEXT, ARRAY, U32 = 8, 9, 4


@pytest.fixture
def path(checkpoint: CheckpointMaker, tmp_path: Path) -> Path:
    """A separate file that is valid."""
    made = write_gguf(tmp_path / "model.gguf", checkpoint("llama"))
    read_all(made)
    return made


def read_all(path: Path) -> None:
    """Read the file as a server does, and every tensor."""
    model = read_model(EngineSettings(), path)
    for name in model.weights:
        model.weights[name]
    Tokenizer.load(path).check_vocabulary(model.program.vocab_size, path)
    ChatTemplate.load(path)


def refusal(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        read_all(path)
    message = str(caught.value)
    assert message.isprintable()
    assert len(message) < 2000
    assert path.name in message
    return message


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def pair(key: bytes, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def tensor(name: bytes, shape: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return text(name) + dimensions + struct.pack("<IQ", kind, offset)


def file(
    *parts: bytes, version: int = 3, tensors: int = 0, pairs: int = 0, magic: bytes = b"GGUF"
) -> bytes:
    return magic + struct.pack("<IQQ", version, tensors, pairs) + b"".join(parts)


ONE: Final = pair(b"a", U32, struct.pack("<I", 1))


def aligned(value: int) -> bytes:
    return pair(b"general.alignment", U32, struct.pack("<I", value))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "has 0 bytes"),
        (b"GGUF", "has 4 bytes"),
        (file(magic=b"GGML"), "begins with b'GGML'"),
        *((file(version=v), f"version {v} is not supported") for v in (0, 1, 4, 2**31)),
        (file(version=3 << 24), "big-endian"),
        (file(tensors=2**64 - 1), "tensor count"),
        (file(pairs=2**64 - 1), "metadata count"),
        (file(pairs=60_000), "metadata count is 60000"),
        (file(b"\xff" * 8, b"x" * 99, pairs=1), "metadata 0: has a string of 18446744073709551615"),
        (file(ONE, ONE, pairs=2), "a: occurs twice"),
        (file(pair(b"a", TEXT, b"\xff" * 8), pairs=1), "a: has a string of 18446744073709551615"),
        (file(pair(b"a", 99, b""), pairs=1), "a: has unknown value type 99"),
        (
            file(pair(b"a", ARRAY, struct.pack("<IQ", U32, 2**63)), pairs=1),
            "a: has 9223372036854775808",
        ),
        (
            file(pair(b"a", ARRAY, struct.pack("<IQ", U32, 2**20)), pairs=1),
            "a: needs 4194304 bytes",
        ),
        (file(pair(b"a", ARRAY, struct.pack("<IQ", TEXT, 2**20)), pairs=1), "a: needs 8 bytes"),
        (file(pair(b"a", ARRAY, struct.pack("<IQ", ARRAY, 1)), pairs=1), "array of value type 9"),
        (file(pair(b"a", U32, b"\0"), pairs=1), "a: needs 4 bytes"),
        *((file(aligned(v), pairs=1), "general.alignment") for v in (0, 3, 2**31)),
        (file(tensor(b"w", (2**62, 2**62)), tensors=1), "w: bad shape"),
        (file(tensor(b"w", (2**32, 2**32)), tensors=1), "w: bad shape"),
        (file(tensor(b"w", (0, 4)), tensors=1), "w: bad shape"),
        (file(tensor(b"w", (1,) * 5), tensors=1), "w: has 5 dimensions"),
        (file(tensor(b"w", (4,), kind=4), tensors=1), "tensor w has type 4"),
        (file(tensor(b"w", (31,), kind=8), tensors=1), "w: is 31 wide"),
        (file(tensor(b"w", (4,), offset=7), tensors=1), "w: offset 7"),
        (file(tensor(b"w", (4,), offset=2**63), tensors=1), "w: ends at byte"),
        (file(tensor(b"w", (4,)), b"\0" * 10, tensors=1), "w: ends at byte"),
        (file(tensor(b"w", (8,)), tensor(b"w", (8,)), b"\0" * 999, tensors=2), "w: occurs twice"),
        (
            file(tensor(b"w", (16,)), tensor(b"x", (16,), offset=32), b"\0" * 999, tensors=2),
            "within another",
        ),
        (file(ONE, pairs=1), "token_embd.weight: tensor is missing"),
        (file(b"\xff" * 8, b"x" * 99, tensors=1), "tensor 0: has a string of"),
    ],
    ids=lambda value: value if isinstance(value, str) else "file",
)
def test_false_headers_are_refused(content: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    assert said in refusal(path)


def test_short_data_is_refused(path: Path) -> None:
    data = path.read_bytes()
    for size in (len(data) - 1, len(data) // 2, len(data) // 4, 100, 30):
        path.write_bytes(data[:size])
        refusal(path)


def edited(path: Path, checkpoint: Path, kind: str = "F32", **metadata: Any) -> Path:
    named = {key.replace("__", "."): value for key, value in metadata.items()}
    return write_gguf(path, checkpoint, kind, metadata=named)


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        ({"llama__embedding_length": 64}, "embed_tokens"),
        ({"llama__embedding_length": "48"}, "hidden_size"),
        ({"llama__block_count": 1}, "num_hidden_layers"),
        ({"llama__block_count": 3}, "model.layers.2"),
        ({"llama__block_count": 2**31 - 1}, "num_hidden_layers"),
        ({"llama__attention__head_count": 5}, "heads"),
        ({"llama__attention__head_count": 0}, "heads"),
        ({"llama__rope__freq_base": -1.0}, "rope_theta"),
        ({"tokenizer__ggml__eos_token_id": 400}, "eos_token_id"),
        ({"tokenizer__ggml__tokens": "x"}, "tokenizer.ggml.tokens"),
        ({"tokenizer__chat_template": 7}, "tokenizer.chat_template"),
        ({"tokenizer__chat_template": "{% for"}, "chat_template"),
        ({"general__sampling__temp": -1.0}, "temperature"),
    ],
)
def test_metadata_and_tensors_that_disagree_are_refused(
    checkpoint: CheckpointMaker, tmp_path: Path, metadata: dict[str, Any], said: str
) -> None:
    made = edited(tmp_path / "model.gguf", checkpoint("llama"), **metadata)
    with pytest.raises(ModelError, match=said.replace(".", r"\.")):
        read_all(made)


def test_scales_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "model", **WIDE, num_hidden_layers=1)
    path = write_gguf(tmp_path / "model.gguf", folder, "Q4_K")
    read_all(path)
    found = {tensor.name: tensor.data_offset for tensor in gguf.GGUFReader(path).tensors}
    for at, what in ((0, "scale"), (2, "minimum")):
        with path.open("r+b") as opened:
            opened.seek(found["blk.0.ffn_up.weight"] + at)
            whole = opened.read(2)
            opened.seek(-2, 1)
            opened.write(np.float16(np.inf).tobytes())
        assert f"blk.0.ffn_up.weight: has a {what} that is infinite" in refusal(path)
        with path.open("r+b") as opened:
            opened.seek(found["blk.0.ffn_up.weight"] + at)
            opened.write(whole)


def test_a_missing_and_a_wrong_shard_are_refused(path: Path, tmp_path: Path) -> None:
    parts = split(path, tmp_path / "parts", 3)
    read_all(parts[0])
    second = parts[1].read_bytes()
    parts[1].write_bytes(parts[2].read_bytes())
    assert "split.no: is part 2 of 3 by its metadata, but 1 of 3 by its name" in refusal_of(
        parts[0]
    )
    parts[1].unlink()
    assert "No such file" in refusal_of(parts[0])
    parts[1].write_bytes(second)
    read_all(parts[0])
    many = parts[0].with_name("model-00001-of-99999.gguf")
    many.write_bytes(second)
    assert "implies 99999 files" in refusal_of(many)


def refusal_of(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        read_all(path)
    return str(caught.value)


GATE: Final = "blk.0.ffn_gate_exps.weight"

NO_EXPERTS: Final = {
    f"blk.{layer}.ffn_{part}_exps.weight": None
    for layer in range(2)
    for part in ("gate", "up", "down")
}


def floats(*shape: int) -> Any:
    return np.zeros(shape, np.float32)


@pytest.mark.parametrize(
    ("metadata", "tensors", "said"),
    [
        ({"expert_count": 7}, {}, "_exps.weight: has 5 experts, but qwen3moe.expert_count is 7"),
        (
            {"expert_count": 2**31 - 1},
            {},
            "has 5 experts, but qwen3moe.expert_count is 2147483647",
        ),
        ({"expert_count": "5"}, {}, "qwen3moe.expert_count is '5'"),
        ({"expert_count": 5.0}, {}, "num_experts: is 5.0"),
        ({"expert_count": 0}, {}, "qwen3moe.expert_count is 0"),
        ({"expert_used_count": 9}, {}, "num_experts_per_tok: is 9, but there are 5 experts"),
        ({"expert_feed_forward_length": 25}, {}, "gate_proj.weight: has shape [24, 32]"),
        ({"expert_feed_forward_length": 2**31 - 1}, {}, "moe_intermediate_size: is 2147483647"),
        ({}, {GATE: floats(4, 24, 32)}, f"{GATE}: has 4 experts, but qwen3moe.expert_count is 5"),
        ({}, {GATE: floats(5, 32, 24)}, "experts.0.gate_proj.weight: has shape [32, 24]"),
        ({}, {GATE: floats(120, 32)}, f"{GATE}: has 2 dimensions, expected 3"),
        ({}, {GATE: floats(5, 24, 2, 16)}, f"{GATE}: has 4 dimensions, expected 3"),
        ({}, {GATE: None}, "experts.0.gate_proj.weight: tensor is missing"),
        (
            {},
            {"blk.0.ffn_gate_exps.bias": floats(5, 24) + 1},
            "does not use model.layers.0.mlp.experts.0",
        ),
        ({}, {"blk.0.ffn_gate_up_exps.weight": floats(5, 48, 32)}, "ffn_gate_up_exps.weight"),
        (
            {"expert_count": 2**20 + 1},
            {**NO_EXPERTS, GATE: floats(2**20 + 1, 1, 1)},
            f"{GATE}: has more than 1048576 experts",
        ),
    ],
)
def test_contradictory_expert_metadata_is_refused(
    tmp_path: Path, metadata: dict[str, Any], tensors: dict[str, Any], said: str
) -> None:
    own = {f"qwen3moe.{key}": value for key, value in metadata.items()}
    source = PEER_FILES / "qwen3moe.gguf"
    made = rewritten(tmp_path / "model.gguf", source, metadata=own, tensors=tensors)
    with pytest.raises(ModelError) as caught:
        read_all(made)
    assert said in str(caught.value)
    assert "model.gguf" in str(caught.value) or "config.json" in str(caught.value)


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        (
            {"rope_factors_long.weight": np.ones(3, np.float16)},
            "long.weight: is not a short vector",
        ),
        (
            {"rope_factors_long.weight": np.ones((3, 1), np.float32)},
            "long.weight: is not a short vector",
        ),
        ({"rope_factors_long.weight": np.ones(2, np.float32)}, "long_factor"),
        ({"rope_factors_short.weight": None}, "with rope_factors_long.weight; expected"),
        ({"rope_freqs.weight": np.ones(3, np.float32)}, "expected longrope"),
        ({"rope_factors_short.weight": np.full(3, np.nan, np.float32)}, "short_factor"),
    ],
)
def test_wrong_long_context_factors_are_refused(
    tmp_path: Path, tensors: dict[str, Any], said: str
) -> None:
    source = PEER_FILES / "phi3-longrope.gguf"
    made = rewritten(tmp_path / "model.gguf", source, tensors=tensors)
    assert said in refusal_of(made)


def test_a_link_out_of_the_folder_is_refused(path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    link = folder / "model.gguf"
    link.symlink_to(path)
    assert "symbolic link" in refusal(link)
