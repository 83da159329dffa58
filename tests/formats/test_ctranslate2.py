"""Whisper folders written by CTranslate2's own converter are read as the original checkpoints."""

import json
import os
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from galley import Transcriber
from galley.engine.read_model import read_model
from galley.errors import CheckpointError, ModelError, UnsupportedModel
from galley.formats.ctranslate2 import CTranslate2Checkpoint
from galley.formats.ctranslate2_file import read_ctranslate2
from galley.formats.reader import open_checkpoint
from galley.formats.weights import DenseWeight, IntWeight, Weight
from galley.settings.engine import EngineSettings
from tests.speech import tiny
from tests.speech.recordings import CALL

TYPES = ("float32", "float16", "bfloat16", "int8", "int8_float16")


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make_whisper(tmp_path_factory.mktemp("whisper"))


@pytest.fixture(scope="module")
def converted(original: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    from ctranslate2.converters import TransformersConverter

    folders = {}
    for name in TYPES:
        folder = folders[name] = tmp_path_factory.mktemp("converted") / name
        files = ["tokenizer.json", "preprocessor_config.json"]
        converter = TransformersConverter(str(original), copy_files=files)
        converter.convert(str(folder), quantization=name)
    return folders


def values(weight: Weight) -> NDArray[np.float32]:
    if isinstance(weight, IntWeight):
        made: NDArray[np.float32] = weight.q.astype(np.float32) * weight.scales
        return made
    assert isinstance(weight, DenseWeight)
    if weight.dtype == "BF16":
        bits = weight.data.view(np.uint16).astype(np.uint32) << 16
        return bits.view(np.float32).reshape(weight.shape)
    kind: Any = {"F32": np.float32, "F16": np.float16}[weight.dtype]
    floats: NDArray[np.float32] = weight.data.view(kind).astype(np.float32).reshape(weight.shape)
    return floats


@pytest.mark.parametrize("name", TYPES)
def test_tensors_are_those_of_the_original(
    name: str, original: Path, converted: dict[str, Path]
) -> None:
    expected, got = open_checkpoint(original).weights(), open_checkpoint(converted[name]).weights()
    unread = {tensor for tensor in expected if tensor.endswith("k_proj.bias")} | {"proj_out.weight"}
    assert set(got) == set(expected) - unread
    for tensor in got:
        want, have = values(expected[tensor]), values(got[tensor])
        assert got.info(tensor) == (got[tensor].shape, got[tensor].kind)
        assert have.shape == want.shape
        if name == "float32":
            assert np.array_equal(have, want)
        elif name in ("float16", "bfloat16"):
            assert have == pytest.approx(want, rel=2**-8, abs=1e-6)
        else:
            rows = np.abs(want.reshape(len(want), -1)).max(1)
            error = np.abs(have - want).reshape(len(want), -1).max(1)
            assert (error <= rows / 250 + 1e-6).all()
    kinds = {got.info(tensor).kind.name for tensor in got if tensor.endswith("proj.weight")}
    wanted = {"float32": "float32", "float16": "f16", "bfloat16": "bf16"}
    assert kinds == {wanted.get(name, "int8")}


def test_special_tokens_and_sizes_are_those_of_the_original(
    original: Path, converted: dict[str, Path]
) -> None:
    one, other = (
        read_model(EngineSettings(model=str(folder)), folder)
        for folder in (original, converted["float32"])
    )
    assert one.speech == other.speech
    assert one.checkpoint.eos_token_ids == other.checkpoint.eos_token_ids
    assert one.program.all_shapes == other.program.all_shapes
    for folder in converted.values():
        checkpoint = open_checkpoint(folder)
        assert isinstance(checkpoint, CTranslate2Checkpoint)
        assert len({checkpoint.state(), checkpoint.outline(), checkpoint.content_hash()}) == 3


@pytest.mark.parametrize("name", ["float32", "int8"])
def test_a_recordings_text_is_that_of_the_original(
    name: str, original: Path, converted: dict[str, Path]
) -> None:
    def text(folder: Path) -> list[str]:
        settings: dict[str, Any] = {"dtype": "float32", "threads": 1, "weight_cache": False}
        with Transcriber(folder, **settings) as transcriber:
            return [segment.text for segment in transcriber.transcribe(CALL)]

    got = text(converted[name])
    assert got
    if name == "float32":
        assert got == text(original)


def test_an_older_converters_vocabulary_is_read(converted: dict[str, Path], tmp_path: Path) -> None:
    folder = shutil.copytree(converted["float16"], tmp_path / "model")
    before = open_checkpoint(folder).generation
    tokens = json.loads((folder / "vocabulary.json").read_text())
    (folder / "vocabulary.txt").write_text("".join(f"{token}\n" for token in tokens))
    (folder / "vocabulary.json").unlink()
    assert open_checkpoint(folder).generation == before


def test_english_alone_is_known_by_the_number_of_tokens(
    converted: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from galley.formats import ctranslate2

    assert open_checkpoint(converted["float16"]).generation["lang_to_id"]
    size = open_checkpoint(converted["float16"]).config["vocab_size"]
    monkeypatch.setattr(ctranslate2, "_ENGLISH_ONLY", size)
    assert "lang_to_id" not in open_checkpoint(converted["float16"]).generation


def damaged(data: bytes, how: str) -> bytes:
    name = b"decoder/embeddings/weight\0"
    dimensions = data.index(name) + len(name)
    if how == "truncated":
        return data[: len(data) // 2]
    if how == "trailing":
        return data + b"\0"
    if how == "version":
        return struct.pack("<I", 2) + data[4:]
    if how == "count":
        head = 4 + 2 + len("WhisperSpec\0") + 4
        return data[:head] + struct.pack("<I", 2**31) + data[head + 4 :]
    if how == "shape":
        return data[: dimensions + 1] + struct.pack("<I", 2**31) + data[dimensions + 5 :]
    if how == "type":
        place = dimensions + 1 + 8
        return data[:place] + b"\x09" + data[place + 1 :]
    if how == "missing":
        return data.replace(name, b"decoder/embeddings/weighs\0")
    assert how == "kind"
    return data.replace(b"WhisperSpec\0", b"MarianiSpec\0", 1)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("truncated", "left|truncated"),
        ("trailing", "trailing data"),
        ("version", "neither"),
        ("count", "more than the supported"),
        ("shape", "decoder/embeddings/weight"),
        ("type", "element type 9"),
        ("missing", "missing"),
        ("kind", "MarianiSpec"),
    ],
)
def test_a_damaged_file_is_refused_with_its_name(
    how: str, said: str, converted: dict[str, Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(converted["float16"], tmp_path / "model")
    data = (folder / "model.bin").read_bytes()
    (folder / "model.bin").write_bytes(damaged(data, how))
    with pytest.raises(ModelError, match=said) as refused:
        open_checkpoint(folder).weights()["model.decoder.embed_tokens.weight"]
    assert str(folder) in str(refused.value)


def test_other_integers_are_refused_and_named(original: Path, tmp_path: Path) -> None:
    from ctranslate2.converters import TransformersConverter

    folder = tmp_path / "int16"
    TransformersConverter(str(original)).convert(str(folder), quantization="int16")
    with pytest.raises(UnsupportedModel, match="type I16"):
        open_checkpoint(folder).weights()


def test_scales_that_are_none_are_refused(converted: dict[str, Path], tmp_path: Path) -> None:
    folder = shutil.copytree(converted["int8"], tmp_path / "model")
    file = read_ctranslate2(folder / "model.bin")
    scale = file.variables["decoder/layer_0/ffn/linear_0/weight_scale"].data.tobytes()
    data = (folder / "model.bin").read_bytes()
    (folder / "model.bin").write_bytes(data.replace(scale, np.zeros(len(scale), "u1").tobytes()))
    with pytest.raises(CheckpointError, match="not a positive number"):
        open_checkpoint(folder).weights()["model.decoder.layers.0.fc1.weight"]


def test_a_pickle_of_that_name_is_not_read(original: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(original, tmp_path / "model")
    os.rename(folder / "model.safetensors", folder / "model.bin")
    with pytest.raises(CheckpointError, match="reads safetensors, GGUF"):
        open_checkpoint(folder).weights()
