"""Speaker encoders of published forms by path: their features, what is made of their voices, refusals."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from transformers.audio_utils import mel_filter_bank, spectrogram, window_function

from galley.errors import ModelNotFound, UnsupportedModel
from galley.speech.audio import Samples
from galley.speech.diarize.encoders import PART, SpeakerEncoder
from galley.speech.diarize.fbank import FilterBank, Window

WIDTH = 24


@pytest.fixture(scope="module")
def speech() -> Samples:
    return (np.random.default_rng(0).normal(size=PART) * 0.05).astype(np.float32)


def encoder_file(
    path: Path,
    name: str,
    shape: Sequence[int | str],
    *,
    outputs: Sequence[str] = ("embs",),
    about: dict[str, str] | None = None,
) -> Path:
    """Write a small network: the largest value over time, times a matrix."""
    bands = shape[-1] if len(shape) == 3 else 1
    assert isinstance(bands, int)
    matrix = np.random.default_rng(1).normal(size=(bands, WIDTH)).astype(np.float32)
    nodes = [
        helper.make_node("ReduceMax", [name], ["most"], axes=[1], keepdims=len(shape) == 2),
        helper.make_node("MatMul", ["most", "matrix"], [outputs[-1]]),
        *(helper.make_node("Identity", [name], [other]) for other in outputs[:-1]),
    ]
    values = [helper.make_tensor_value_info(one, TensorProto.FLOAT, None) for one in outputs]
    graph = helper.make_graph(
        nodes,
        "encoder",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)],
        values,
        [numpy_helper.from_array(matrix, "matrix")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    helper.set_model_props(model, about or {})
    onnx.save(model, path)
    return path


@pytest.mark.parametrize("window", ["povey", "hamming"])
def test_the_filter_bank_is_kaldis(speech: Samples, window: Window) -> None:
    """Transformers' extractors of Kaldi's features are compared with Kaldi in its own tests."""
    bands = mel_filter_bank(
        num_frequency_bins=257,
        num_mel_filters=80,
        min_frequency=20,
        max_frequency=8_000,
        sampling_rate=16_000,
        norm=None,
        mel_scale="kaldi",
        triangularize_in_mel_space=True,
    )
    expected = spectrogram(
        speech,
        window_function(400, window, periodic=False),
        frame_length=400,
        hop_length=160,
        fft_length=512,
        power=2.0,
        center=False,
        preemphasis=0.97,
        mel_filters=bands,
        log_mel="log",
        mel_floor=1.192092955078125e-07,
        remove_dc_offset=True,
    ).T
    found = FilterBank(window)(speech)
    assert found.shape == expected.shape == (158, 80)
    assert np.allclose(found, expected, atol=2e-3)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("mels", ["parts", 160, 40]),
        ("feats", ["B", "T", 80]),
        ("feature", [1, "T", 80]),
        ("x", [4, 200, 80]),
        ("waveform", ["B", "samples"]),
        ("waveform", [1, 16_000]),
    ],
)
def test_each_form_gives_unit_vectors_that_do_not_depend_on_the_batch(
    tmp_path: Path, speech: Samples, name: str, shape: list[int | str]
) -> None:
    encoder = SpeakerEncoder(encoder_file(tmp_path / "encoder.onnx", name, shape))
    clips = [speech[: PART // 2], speech, speech[::-1].copy(), speech[5_000:]] * 10
    voices = encoder(clips)
    assert voices.shape == (40, encoder.width)
    assert encoder.width == WIDTH
    assert np.allclose(np.linalg.norm(voices, axis=1), 1, atol=1e-5)
    alone = np.concatenate([encoder([clip]) for clip in clips[:4]])
    assert np.allclose(voices[:4], alone, atol=1e-5)


def test_a_filter_bank_has_no_mean_and_the_scale_of_its_framework(
    tmp_path: Path, speech: Samples
) -> None:
    def variances(about: dict[str, str], name: str) -> NDArray[np.float32]:
        path = encoder_file(tmp_path / "encoder.onnx", name, ["B", "T", 80], about=about)
        prepared: NDArray[np.float32] = SpeakerEncoder(path)._prepare(speech * 1e-5)
        assert np.allclose(prepared.mean(axis=0), 0, atol=1e-4)
        found: NDArray[np.float32] = prepared.var(axis=0)
        return found

    # So quiet a clip is below 3D-Speaker's floor, but not below WeSpeaker's, which has 16-bit samples.
    assert variances({"framework": "3d-speaker"}, "x").max() == 0
    assert variances({}, "feats").min() > 0.1
    assert variances({"framework": "wespeaker"}, "x").min() > 0.1


def test_of_several_outputs_the_voice_is_taken(tmp_path: Path, speech: Samples) -> None:
    path = encoder_file(tmp_path / "a.onnx", "feats", ["B", "T", 80], outputs=("logits", "embs"))
    assert SpeakerEncoder(path).width == WIDTH
    path = encoder_file(tmp_path / "b.onnx", "feats", ["B", "T", 80], outputs=("one", "two"))
    with pytest.raises(UnsupportedModel, match="the outputs one, two; expected a single one"):
        SpeakerEncoder(path)


@pytest.mark.parametrize(
    ("name", "shape", "about", "message"),
    [
        ("x", ["B", "T", 64], {}, r"the inputs x \['B', 'T', 64\]; supported are mels"),
        ("x", ["B", 1, "T", 80], {}, "supported are mels"),
        ("x", ["B", "T", 80], {"framework": "nemo"}, "framework is 'nemo'; supported: wespeaker"),
        ("x", ["B", "T", 80], {"sample_rate": "8000"}, "sample_rate is '8000'; supported: 16000"),
        ("x", ["B", "T", 80], {"feature_normalize_type": "per_feature"}, "supported: global-mean"),
    ],
)
def test_another_form_is_refused_by_name(
    tmp_path: Path, name: str, shape: list[int | str], about: dict[str, str], message: str
) -> None:
    path = tmp_path / "encoder.onnx"
    encoder_file(path, name, shape if len(shape) == 3 else ["B", "T", 80], about=about)
    if len(shape) == 4:
        model = onnx.load(path)
        dims = model.graph.input[0].type.tensor_type.shape.dim
        dims.insert(1, type(dims[0])(dim_value=1))
        del model.graph.node[:]
        model.graph.node.append(helper.make_node("Identity", [name], ["embs"]))
        onnx.save(model, path)
    with pytest.raises(UnsupportedModel, match=message):
        SpeakerEncoder(path)


def test_a_missing_and_a_damaged_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"none\.onnx is missing"):
        SpeakerEncoder(tmp_path / "none.onnx")
    (tmp_path / "damaged.onnx").write_bytes(b"no network")
    with pytest.raises(UnsupportedModel, match=r"damaged\.onnx cannot be loaded"):
        SpeakerEncoder(tmp_path / "damaged.onnx")
