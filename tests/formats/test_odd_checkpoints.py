"""Unusual but valid files: they are served as transformers and llama.cpp serve them."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, Gemma3Config, Gemma3ForConditionalGeneration

from galley.calibration.to_gguf import read_dense_model
from galley.errors import CheckpointError, ModelNotFound, SettingsError
from galley.formats.checkpoint import Checkpoint
from galley.formats.models_folder import models_in
from galley.formats.reader import open_checkpoint
from galley.formats.source import resolve_model
from tests.checkpoints import SHAPE, VARIANTS, make_checkpoint, random_ids
from tests.conftest import CheckpointMaker
from tests.formats.values import Floats, galleys_logits, relative

IDS = random_ids(4, 30)
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
Tensors = dict[str, torch.Tensor]


@pytest.fixture
def model(checkpoint: CheckpointMaker, tmp_path: Path) -> Path:
    """A separate checkpoint."""
    return Path(shutil.copytree(checkpoint("llama"), tmp_path / "model"))


def truth(folder: Path) -> Floats:
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    with torch.inference_mode():
        return model.eval()(torch.tensor([IDS])).logits[0].numpy()


def edit(folder: Path, change: Callable[[Tensors], Tensors]) -> None:
    path = folder / WEIGHTS
    tensors = change(load_file(path))
    save_file({n: t.contiguous() for n, t in tensors.items()}, path, metadata={"format": "pt"})


def test_a_whole_file_is_used_instead_of_its_index(model: Path) -> None:
    expected = galleys_logits(model, IDS)
    for index in ({"weight_map": {"model.norm.weight": "model-00001-of-00002.safetensors"}}, {}):
        (model / INDEX).write_text(json.dumps(index))
        assert np.array_equal(galleys_logits(model, IDS), expected)
        assert relative(expected, truth(model)) < 1e-4
        assert Checkpoint.open(model).content_hash()


def test_a_whole_file_that_the_index_names_is_one_of_its_files(model: Path) -> None:
    expected = galleys_logits(model, IDS)
    tensors = load_file(model / WEIGHTS)
    moved = {name: tensors.pop(name) for name in list(tensors) if "layers.1." in name}
    places = {**dict.fromkeys(tensors, WEIGHTS), **dict.fromkeys(moved, "more.safetensors")}
    save_file(tensors, model / WEIGHTS, metadata={"format": "pt"})
    save_file(moved, model / "more.safetensors", metadata={"format": "pt"})
    (model / INDEX).write_text(json.dumps({"weight_map": places}))
    assert np.array_equal(galleys_logits(model, IDS), expected)


@pytest.mark.parametrize("part", ["", "norm", "q_proj", "lm_head"])
def test_float64_is_read_as_float32(model: Path, part: str) -> None:
    expected = galleys_logits(model, IDS)
    edit(model, lambda tensors: {n: t.double() if part in n else t for n, t in tensors.items()})
    assert np.array_equal(galleys_logits(model, IDS), expected)
    [note] = open_checkpoint(model).weights().notes
    assert "float64" in note


def test_tensors_without_values_are_left_unread(model: Path) -> None:
    expected = galleys_logits(model, IDS)
    edit(model, lambda tensors: {**tensors, "a.b": torch.zeros(0), "c": torch.zeros(3, 0)})
    assert np.array_equal(galleys_logits(model, IDS), expected)
    edit(model, lambda tensors: {**tensors, "model.norm.weight": torch.zeros(0)})
    with pytest.raises(CheckpointError, match=r"model.norm.weight"):
        galleys_logits(model, IDS)


def test_of_a_field_that_stands_twice_the_last_counts(model: Path) -> None:
    path = model / "config.json"
    path.write_text(path.read_text().replace("{", '{"rms_norm_eps": 0.5, "vocab_size": 3,', 1))
    assert Checkpoint.open(model).config["vocab_size"] == SHAPE["vocab_size"]
    assert relative(galleys_logits(model, IDS), truth(model)) < 1e-4


@pytest.mark.parametrize("head", ["tied", "own"])
def test_a_language_model_with_the_names_of_a_whole_model(head: str, tmp_path: Path) -> None:
    """``model.language_model.*`` with a config of the language model alone."""
    folder = make_checkpoint(tmp_path, "gemma3", tie_word_embeddings=head == "tied")
    expected = truth(folder)

    def renamed(tensors: Tensors) -> Tensors:
        return {name.replace("model.", "model.language_model."): t for name, t in tensors.items()}

    edit(folder, renamed)
    assert relative(galleys_logits(folder, IDS), expected) < 1e-4


def test_a_model_of_several_parts_as_transformers_5_names_them(tmp_path: Path) -> None:
    torch.manual_seed(0)
    text = {**SHAPE, **VARIANTS["gemma3"], "tie_word_embeddings": True}
    vision = {"hidden_size": 16, "intermediate_size": 20, "num_hidden_layers": 1}
    vision |= {"num_attention_heads": 2, "image_size": 28, "patch_size": 14}
    config = Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=4)
    whole = Gemma3ForConditionalGeneration(config).eval()
    whole.save_pretrained(tmp_path)
    with torch.inference_mode():
        expected = whole(torch.tensor([IDS])).logits[0].numpy()
    names = dict(whole.named_parameters())
    assert any(name.startswith("model.language_model.") for name in names)
    edit(tmp_path, lambda _: {name: p.detach() for name, p in names.items() if "head" not in name})
    assert relative(galleys_logits(tmp_path, IDS), expected) < 1e-4
    program = read_dense_model(tmp_path).program
    assert all(name.startswith("language_model.") for name in program.shapes)


def test_blobs_may_be_a_link(model: Path, tmp_path: Path) -> None:
    """As when the hub library's cache keeps its large files on another disk."""
    disk, cache = tmp_path / "disk", tmp_path / "hub/models--org--name"
    disk.mkdir()
    snapshot = cache / "snapshots/0123"
    snapshot.mkdir(parents=True)
    (cache / "blobs").symlink_to(disk)
    for path in model.iterdir():
        path.rename(disk / f"blob-{path.name}")
        (snapshot / path.name).symlink_to(f"../../blobs/blob-{path.name}")
    assert galleys_logits(snapshot, IDS).shape == (len(IDS), SHAPE["vocab_size"])
    (disk / f"blob-{WEIGHTS}").rename(tmp_path / "elsewhere")
    (snapshot / WEIGHTS).unlink()
    (snapshot / WEIGHTS).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match="is a symbolic link"):
        galleys_logits(snapshot, IDS)


BESIDE = ("mmproj-model-f16.gguf", "model.mmproj-Q8_0.gguf", "imatrix.gguf", "model-imatrix.GGUF")


@pytest.mark.parametrize("name", ["M.GGUF", "m.gguf", "imatrixed.gguf"])
def test_gguf_files_that_go_with_a_model_are_none(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for other in (name, *BESIDE):
        (folder / other).write_bytes(b"GGUF")
    assert resolve_model(str(folder)) == folder / name
    assert models_in(str(folder)) == {Path(name).stem: folder / name}
    assert models_in(str(tmp_path)) == {"model": folder}
    (folder / "second.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelNotFound, match=f"several GGUF files.*{name}"):
        resolve_model(str(folder))


def test_links_in_a_folder_of_models(model: Path, tmp_path: Path) -> None:
    """Links to models are the operator's own; those that leave a model are refused at the start."""
    folder = tmp_path / "models"
    folder.mkdir()
    (tmp_path / "elsewhere.gguf").write_bytes(b"GGUF")
    (folder / "one").symlink_to(model)
    (folder / "two.gguf").symlink_to(tmp_path / "elsewhere.gguf")
    assert models_in(str(folder)) == {"one": model, "two": tmp_path / "elsewhere.gguf"}
    (model / WEIGHTS).rename(tmp_path / "weights")
    (model / WEIGHTS).symlink_to(tmp_path / "weights")
    with pytest.raises(SettingsError, match=r"models_dir: .*one/model.safetensors: is a symbolic"):
        models_in(str(folder))
    (model / WEIGHTS).unlink()
    (model / "README.md").symlink_to(tmp_path / "readme")
    assert set(models_in(str(folder))) == {"one", "two"}
