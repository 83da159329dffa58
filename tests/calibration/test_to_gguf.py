"""galley quantize --format gguf: its output, read by the gguf package and by Galley itself."""

import json
from pathlib import Path
from typing import Any, Final

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize as truth
from hypothesis import given
from hypothesis import strategies as st

from galley.calibration.held_out import held_apart
from galley.calibration.matrices import linear_weights
from galley.calibration.quantize import Plan, Quantizer
from galley.calibration.to_gguf import prepare, read_dense_model, write
from galley.errors import UnsupportedModel
from galley.formats.gguf_metadata import Metadata
from galley.formats.gguf_names import gguf_name
from galley.formats.gguf_pack import packed, type_of
from galley.formats.gguf_writer import write_gguf
from galley.formats.reader import open_checkpoint
from galley.formats.values import dequantize
from galley.formats.weights import DenseWeight, TensorInfo
from galley.ops.choice import choose_executor
from galley.quant.grid import Scheme, nearest
from galley.text import gguf_tokenizer
from galley.text import tokenizer as text
from galley.text.gguf_vocabulary import vocabulary_of
from galley.text.template import ChatTemplate
from tests.checkpoints import make_checkpoint, random_ids
from tests.cli.command import galley
from tests.conftest import CheckpointMaker
from tests.formats.values import galleys_logits, relative
from tests.text import trained

IDS: Final = random_ids(5, 40)
VARIANTS: Final = (
    *("llama-head-dim-bias", "llama-mqa-odd", "llama-linear", "llama-llama3", "llama-yarn"),
    *("mistral-window", "qwen2", "qwen3"),
)
SCHEMES: Final = {
    "Q4_0": Scheme(4, 32, scale_type="F16"),
    "Q4_1": Scheme(4, 32, symmetric=False, scale_type="F16"),
    "Q8_0": Scheme(8, 32, scale_type="F16"),
}


def written(folder: Path, out: Path, **options: Any) -> Path:
    model = read_dense_model(folder)
    write(model, prepare(model, "a model", **options), out)
    return out


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_file_says_what_its_folder_says(
    checkpoint: CheckpointMaker, variant: str, tmp_path: Path
) -> None:
    folder = checkpoint(variant)
    path = written(folder, tmp_path / "model.gguf")
    got, expected = galleys_logits(path, IDS), galleys_logits(folder, IDS)
    if variant == "llama-llama3":  # whose frequencies are quotients in the file
        assert relative(got, expected) <= 1e-5
    else:
        assert np.array_equal(got, expected)
    ours, theirs = open_checkpoint(path), open_checkpoint(folder)
    assert set(ours.eos_token_ids) >= set(theirs.eos_token_ids)
    one, other = text.Tokenizer.load(path), text.Tokenizer.load(folder)
    chat = [{"role": "user", "content": "the cat <|im_end|>"}]
    prompts = [ChatTemplate.load(f).encode(t, chat) for f, t in ((path, one), (folder, other))]
    assert prompts[0] == prompts[1]
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    values = theirs.weights()["model.layers.1.mlp.up_proj.weight"]
    assert isinstance(values, DenseWeight)
    assert tensors["blk.1.ffn_up.weight"].data.tobytes() == values.data.tobytes()


@given(
    name=st.sampled_from(sorted(SCHEMES)),
    rows=st.integers(1, 5),
    blocks=st.integers(1, 9),
    group=st.sampled_from([0, 32, 64]),
    spread=st.floats(-6, 2),
    seed=st.integers(0, 99),
)
def test_blocks_have_the_values_of_the_integers(
    name: str, rows: int, blocks: int, group: int, spread: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((rows, 32 * blocks)) * 10**spread
    scheme = Scheme(SCHEMES[name].bits, group, SCHEMES[name].symmetric, "F16")
    weight = nearest("w", values.astype(np.float32), scheme)
    assert type_of("w", TensorInfo(weight.shape, weight.kind)) == name
    expected = dequantize(weight)
    assert np.array_equal(truth(packed(weight), gguf.GGMLQuantizationType[name]), expected)


@pytest.mark.parametrize("type", SCHEMES)
def test_integers_are_written_as_they_are(type: str, tmp_path: Path) -> None:
    shape: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 32}
    folder = make_checkpoint(tmp_path / "model", "llama", **shape)
    model, out = read_dense_model(folder), tmp_path / "model.gguf"
    plan = Plan("mse", dict.fromkeys(linear_weights(model.program), SCHEMES[type]))
    windows = [random_ids(seed, 32) for seed in range(9)]
    _, factory = choose_executor("auto", "cpu")
    quantizer = Quantizer(model, factory, tmp_path / "layers", plan, held_apart(windows))
    logits = []

    def finish(layers: Path) -> None:
        read = read_dense_model(layers)
        write(read, prepare(read, "a model"), out)
        logits.append(galleys_logits(layers, IDS))

    loss = quantizer.run(on_written=finish)
    if type == "Q4_1":  # runs with minima, not with zero points: other sums of the same values
        assert relative(galleys_logits(out, IDS), logits[0]) <= 1e-5
    else:
        assert np.array_equal(galleys_logits(out, IDS), logits[0])
    reader = gguf.GGUFReader(out)
    kinds = {tensor.name: tensor.tensor_type.name for tensor in reader.tensors}
    assert {kinds[str(gguf_name(name))] for name in plan.schemes} == {type}
    assert kinds["token_embd.weight"] == kinds["blk.0.attn_norm.weight"] == "F32"
    receipt = open_checkpoint(out).config["galley_quantize"]
    assert receipt["kl"] == pytest.approx(loss.kl)
    assert receipt["method"] == "mse"


def tokenizer_file(folder: Path) -> tuple[Path, Metadata, tuple[str, ...]]:
    rows = text.Tokenizer.load(folder).vocab_size + 3
    made = vocabulary_of(folder, rows)
    path = folder / "model.gguf"
    write_gguf(path, made.metadata, [])
    return path, gguf_tokenizer.read_metadata(path), made.differs


def check_equal(path: Path, folder: Path) -> None:
    one, other = text.Tokenizer.load(path), text.Tokenizer.load(folder)
    texts = [*trained.CORPUS[:5], " a", "a  b ", "<|eot_id|>x <think></s>\x00", "e\u0301ab\u2009"]
    for string in texts:
        assert one.encode(string) == other.encode(string)
        assert one.encode_plain(string) == other.encode_plain(string)
        assert one.decode(one.encode(string)) == other.decode(other.encode(string))
    assert one.special_ids == other.special_ids
    assert one.special_tokens == other.special_tokens


@pytest.mark.parametrize("pre", trained.SPLITS)
def test_byte_level_tokenizers(pre: str, tmp_path: Path) -> None:
    folder = trained.byte_level(tmp_path / "model", split=trained.SPLITS[pre])
    path, metadata, differs = tokenizer_file(folder)
    assert not differs
    assert metadata.raw["tokenizer.ggml.pre"] == pre
    assert metadata.raw["tokenizer.ggml.token_type"][-3:] == [5] * 3
    check_equal(path, folder)


@pytest.mark.parametrize("prefix", [True, False])
@pytest.mark.parametrize("complete", [True, False])
def test_pieces_get_the_scores_that_merge_them(
    prefix: bool, complete: bool, tmp_path: Path
) -> None:
    folder = trained.sentencepiece(tmp_path / "model", complete=complete)
    file = json.loads((folder / "tokenizer.json").read_text())
    if not prefix:
        file["normalizer"] = file["normalizer"]["normalizers"][1]
        file["decoder"]["decoders"].pop()
    (folder / "tokenizer.json").write_text(json.dumps(file))
    path, metadata, differs = tokenizer_file(folder)
    assert metadata.raw["tokenizer.ggml.model"] == "llama"
    assert metadata.raw["tokenizer.ggml.add_space_prefix"] is prefix
    assert differs == (() if complete else ("its merges do not follow from the scores of tokens",))
    check_equal(path, folder)


def test_a_tokenizer_that_llama_cpp_lacks_is_written_on_request(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "model")
    file = json.loads((folder / "tokenizer.json").read_text())
    split = {"type": "Split", "pattern": {"Regex": "[a-d]+|."}, "behavior": "Isolated"}
    bytes_of_words = {**file["pre_tokenizer"], "use_regex": False}
    file["pre_tokenizer"] = {
        "type": "Sequence",
        "pretokenizers": [{**split, "invert": False}, bytes_of_words],
    }
    file["added_tokens"][2]["lstrip"] = True
    (folder / "tokenizer.json").write_text(json.dumps(file))
    with pytest.raises(UnsupportedModel, match=r"lstrip; it splits texts .* --nearest-tokenizer"):
        written(folder, tmp_path / "model.gguf")
    path = written(folder, tmp_path / "model.gguf", nearest_tokenizer=True)
    check_equal(path, folder)


@pytest.mark.parametrize(
    ("variant", "said"),
    [
        ("gemma2", "model_type gemma2 .* supported: llama, mistral, qwen2, qwen3"),
        ("qwen2-window", "sliding_window: llama.cpp's qwen2"),
        ("phi3", "model_type phi3"),
    ],
)
def test_what_llama_cpp_lacks_is_refused(
    checkpoint: CheckpointMaker, variant: str, said: str, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedModel, match=said):
        written(checkpoint(variant), tmp_path / "model.gguf")
    assert not [*tmp_path.iterdir()]


def test_integers_that_no_type_holds_are_refused() -> None:
    values = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
    for scheme in (Scheme(4, 16), Scheme(8, 16)):
        weight = nearest("w", values, scheme)
        with pytest.raises(UnsupportedModel, match="tensor w is int"):
            type_of("w", TensorInfo(weight.shape, weight.kind))
    weight = nearest("w", values * 1e-7, Scheme(4, 32))
    with pytest.raises(UnsupportedModel, match="tensor w has a scale that float16"):
        packed(weight)


def test_the_command(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "model", "qwen3", hidden_size=64)
    out = tmp_path / "out.gguf"
    options = ("--format", "gguf", "--method", "rtn", "--tokens", 600, "--context", 48)
    done = galley("quantize", folder, out, *options)
    assert done.returncode == 0, done.stderr
    assert "4 layers are not quantized" in done.stdout  # of 80 and 88 columns
    assert "on 611 tokens of text that the base generated" in done.stdout
    types = [tensor.tensor_type.name for tensor in gguf.GGUFReader(out).tensors]
    assert types.count("Q4_0") == 2 * 7 - 4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "out.gguf"]
    for more, said in (
        ((folder, out), "exists"),
        ((folder, tmp_path / "new"), "a name that ends in .gguf"),
        ((folder, tmp_path / "n.gguf", "--group", 64), "groups of 32"),
        ((folder, tmp_path / "n.gguf", "--method", "none", "--bits", 8), "--bits"),
    ):
        done = galley("quantize", *more[:2], *options[:2], *more[2:])
        assert done.returncode == 2
        assert said in done.stderr
