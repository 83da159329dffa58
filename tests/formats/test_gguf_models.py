"""GGUF checkpoints against transformers' own reading of the same files."""

import dataclasses
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from galley import LLM, SamplingParams
from galley.engine.read_model import read_model
from galley.errors import ModelNotFound, UnsupportedModel
from galley.formats.gguf_file import TYPES
from galley.formats.reader import open_checkpoint
from galley.formats.source import resolve_config, resolve_model
from galley.models.registry import build_program
from galley.ops.cpu import CpuExecutor
from galley.ops.executor import forward
from galley.settings.engine import EngineSettings
from galley.text.template import ChatTemplate
from galley.text.tokenizer import Tokenizer
from tests.checkpoints import make_checkpoint
from tests.formats.gguf_files import WIDE, split, write_gguf
from tests.native.harness import Floats, ragged

IDS: Final = [5, 40, 41, 300, 7, 7, 19, 250, 3, 60, 61, 62, 63, 64, 65, 66, 67, 319]

Folders = dict[str, Path]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    """Map the variant to its folder in Hugging Face's layout."""
    # transformers supports only the default head width in a qwen3 file.
    shapes = {"llama": WIDE, "qwen2": WIDE, "qwen3": {**WIDE, "head_dim": 128}}
    return {
        variant: make_checkpoint(tmp_path_factory.mktemp(variant), variant, **shape)
        for variant, shape in shapes.items()
    }


def galleys_logits(path: Path) -> Floats:
    floats: dict[str, Any] = {
        "activations": "float32",
        "weight_dtype": "float32",
        "kv_dtype": "float32",
    }
    model = read_model(EngineSettings(**floats), path)
    options = dataclasses.replace(model.options, weight_cache=None, threads=1)
    executor = CpuExecutor(model.program, model.weights, options)
    executor.allocate_kv(4)
    return forward(executor, ragged([(IDS, len(IDS))], first_block=0)).copy()


def transformers_logits(path: Path) -> Floats:
    model = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    )
    with torch.no_grad():
        made: Floats = model(torch.tensor([IDS])).logits[0].numpy()
    return made


@pytest.mark.parametrize("type", ["Q4_1", "Q4_K", "Q8_0"])
def test_keys_and_values_of_integer_models_are_bfloat16(
    folders: Folders, tmp_path: Path, type: str
) -> None:
    path = write_gguf(tmp_path / "model.gguf", folders["llama"], type)

    def kv_dtype(**settings: Any) -> str:
        return read_model(EngineSettings(**settings), path).options.kv_dtype

    assert kv_dtype() == "bfloat16"
    assert kv_dtype(dtype="float32") == kv_dtype(activations="float32") == "float32"
    assert kv_dtype(kv_dtype="int8") == "int8"


@pytest.mark.parametrize(
    ("variant", "type"),
    [
        *(("llama", known.name) for known in TYPES.values()),
        *(("qwen2", "Q4_K"), ("qwen3", "Q8_0"), ("qwen3", "Q6_K")),
    ],
)
def test_logits_are_those_of_transformers(
    folders: Folders, variant: str, type: str, tmp_path: Path
) -> None:
    path = write_gguf(tmp_path / "model.gguf", folders[variant], type)
    got, expected = galleys_logits(path), transformers_logits(path)
    assert relative(got, expected) <= 2e-5
    assert np.array_equal(got.argmax(axis=1), expected.argmax(axis=1))


def relative(got: Floats, expected: Floats) -> float:
    return float(np.abs(got - expected).max() / np.abs(expected).max())


def test_a_file_says_what_its_folder_says(folders: Folders, tmp_path: Path) -> None:
    """The same floats give the same bits, the same text and the same prompts."""
    folder = folders["llama"]
    path = write_gguf(tmp_path / "model.gguf", folder)
    assert np.array_equal(galleys_logits(path), galleys_logits(folder))
    one, other = Tokenizer.load(path), Tokenizer.load(folder)
    strings = ["the cat sat", " the  mat\n\n!", "naïve Ωμέγα 🦉 12345", "<|end|><|im_start|>x", ""]
    for text in strings:
        assert one.encode(text) == other.encode(text)
        assert one.encode_plain(text) == other.encode_plain(text)
        assert one.decode(one.encode(text)) == other.decode(other.encode(text))
    assert one.special_ids == other.special_ids
    chat = [{"role": "user", "content": "the cat <|im_end|>"}]
    prompts = [ChatTemplate.load(f).encode(t, chat) for f, t in ((path, one), (folder, other))]
    assert prompts[0] == prompts[1]
    greedy = SamplingParams(max_tokens=8, temperature=0.0)
    texts = []
    for model in (path, folder):
        with closing(LLM(str(model), threads=1, kv_cache_tokens=256)) as llm:
            texts.append(llm.generate("the cat", greedy)[0].text)
    assert texts[0] == texts[1]


ROPE: Final[dict[str, dict[str, Any]]] = {
    "linear": {"rope_type": "linear", "factor": 3.0, "rope_theta": 10000.0},
    "yarn": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 128,
        "rope_theta": 10000.0,
        "attention_factor": 1.3,
    },
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
        "rope_theta": 5000.0,
    },
}


@pytest.mark.parametrize("kind", [*ROPE, "tied", "window", "bias"])
def test_what_a_config_may_say_comes_back(kind: str, tmp_path: Path) -> None:
    variant = "mistral-window" if kind == "window" else "llama"
    changes: dict[str, Any] = {"rope_parameters": ROPE[kind]} if kind in ROPE else {}
    changes |= {"tie_word_embeddings": kind == "tied", "attention_bias": kind == "bias"}
    changes |= {"sliding_window": 8} if kind == "window" else {}
    folder = make_checkpoint(tmp_path / "model", variant, **changes)
    path = write_gguf(tmp_path / "model.gguf", folder)
    assert relative(galleys_logits(path), galleys_logits(folder)) <= 1e-5


def test_split_files_are_one_checkpoint(folders: Folders, tmp_path: Path) -> None:
    whole = write_gguf(tmp_path / "whole" / "model.gguf", folders["llama"], "Q8_0")
    parts = split(whole, tmp_path / "parts", 3)
    expected = galleys_logits(whole)
    for part in (parts[0], parts[2]):
        assert np.array_equal(galleys_logits(part), expected)
    assert resolve_model(str(tmp_path / "parts")) == parts[0]
    state = open_checkpoint(parts[0]).state()
    parts[1].touch()
    assert open_checkpoint(parts[0]).state() != state


def test_the_receipt_says_that_the_integers_are_those_of_a_file(
    folders: Folders, tmp_path: Path
) -> None:
    said = []
    for kind in ("Q4_K", "F32"):
        path = write_gguf(tmp_path / f"{kind}.gguf", folders["llama"], kind)
        with closing(LLM(str(path), threads=1, kv_cache_tokens=256)) as llm:
            assert llm.info.weights is not None
            said.append(llm.info.weights.method)
    assert said == ["gguf", "none"]


def test_what_names_a_file(folders: Folders, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "a.gguf", folders["llama"], "Q8_0")
    assert resolve_model(str(path)) == resolve_model(str(tmp_path)) == path
    assert build_program(open_checkpoint(resolve_config(str(path))).config).vocab_size == 320
    (tmp_path / "b.gguf").write_bytes(path.read_bytes())
    with pytest.raises(ModelNotFound, match=r"several GGUF files.*a\.gguf, b\.gguf"):
        resolve_model(str(tmp_path))
    with pytest.raises(ModelNotFound, match="is not a folder, a hub id"):
        resolve_model("org/name/../x.gguf")


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("general.architecture", "mamba", "general.architecture 'mamba' is not supported"),
        ("llama.expert_group_count", 8, "llama.expert_group_count is 8"),
        ("llama.rope.dimension_count", 32, "llama.rope.dimension_count is 32"),
        ("llama.rope.scaling.type", "longrope", "longrope"),
        ("tokenizer.ggml.model", "t5", "tokenizer.ggml.model 't5'"),
        ("tokenizer.ggml.pre", "nobody", "tokenizer.ggml.pre 'nobody'"),
    ],
)
def test_what_is_not_supported_is_named(
    folders: Folders, tmp_path: Path, key: str, value: Any, said: str
) -> None:
    path = write_gguf(tmp_path / "a.gguf", folders["llama"], "Q8_0", metadata={key: value})
    read = Tokenizer.load if "tokenizer" in key else partial(read_model, EngineSettings())
    with pytest.raises(UnsupportedModel, match=said):
        read(path)
