"""Tiny voices of the form of Piper's: an ONNX graph with VITS' three networks, and its JSON file."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

RATE = 16_000
FRAMES_OF_PHONEME = 6
HOP = 8
CHANNELS = 4
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789 .,!?"
SPEAKERS = {"ada": 0, "bob": 1}


def config(*, speakers: bool = False, **changed: Any) -> dict[str, Any]:
    """Return the contents of the JSON file."""
    symbols = ["_", "^", "$", *LETTERS]
    return {
        "audio": {"sample_rate": RATE, "quality": "x_low"},
        "espeak": {"voice": "en-us"},
        "inference": {"noise_scale": 0, "length_scale": 1, "noise_w": 0},
        "language": {"code": "en_US"},
        "phoneme_type": "text",
        "phoneme_id_map": {symbol: [number] for number, symbol in enumerate(symbols)},
        "num_speakers": len(SPEAKERS) if speakers else 1,
        "speaker_id_map": SPEAKERS if speakers else {},
        "dataset": "" if speakers else "ada",
        **changed,
    }


def voice(
    path: Path,
    *,
    speakers: bool = False,
    divisible: bool = True,
    frames: int = FRAMES_OF_PHONEME,
    **changed: Any,
) -> Path:
    """Write a voice to ``path`` and the file next to it.

    Args:
        path: of the ``.onnx`` file.
        speakers: whether it has two speakers.
        frames: of each phoneme.
        divisible: whether its weights have the names by which the networks are found.
        changed: fields of the JSON file.
    """
    draw = np.random.default_rng(7)
    weights: dict[str, Any] = {}

    def weight(name: str, *shape: int) -> str:
        weights[name] = (draw.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype("f4")
        return name

    def constant(name: str, values: Any, dtype: str = "i8") -> str:
        weights[name] = np.array(values, dtype)
        return name

    node = helper.make_node
    nodes = [
        # The encoder: a row for each phoneme, repeated for its frames.
        node("Gather", [weight("enc.emb", 64, CHANNELS), "input"], ["rows"]),
        node("Transpose", ["rows"], ["phonemes"], perm=[0, 2, 1]),
        node("Gather", ["scales", constant("one", [1])], ["length"]),
        node("Mul", ["length", constant("frames", [frames], "f4")], ["times"]),
        node("Concat", [constant("two_ones", [1, 1], "f4"), "times"], ["factors"], axis=0),
        node("Resize", ["phonemes", "", "factors"], ["mean"], mode="nearest"),
        node("RandomNormalLike", ["mean"], ["noise"], seed=3.0),
        node("Gather", ["scales", constant("zero", [0])], ["noise_scale"]),
        node("Mul", ["noise", "noise_scale"], ["scaled"]),
        node("Add", ["mean", "scaled"], ["z_p"]),
        node("Cast", ["input_lengths"], ["lengths"], to=TensorProto.FLOAT),
        node("Slice", ["z_p", "zero", "one", "one"], ["channel"]),
        node("Mul", ["channel", constant("nothing", 0, "f4")], ["zeros"]),
        node("Min", ["lengths", constant("unit", [1], "f4")], ["ones"]),
        node("Add", ["zeros", "ones"], ["mask"]),
        # The flow, and the decoder.
        node("Conv", ["z_p", weight("flow.flows.0.w", 4, 4, 5)], ["f0"], "/flow/c", pads=[2, 2]),
        node("Mul", ["f0", "mask"], ["z"], "/flow/m"),
        node("Conv", ["z", weight("dec.conv_pre.weight", 8, 4, 7)], ["d0"], "/dec/a", pads=[3, 3]),
        node("LeakyRelu", ["sum" if speakers else "d0"], ["d1"], "/dec/b"),
        node("ConvTranspose", ["d1", weight("dec.up", 8, 4, 16)], ["d2"], "/dec/c", strides=[HOP],
             pads=[4, 4]),
        node("Conv", ["d2", weight("dec.post", 1, 4, 7)], ["d3"], "/dec/d", pads=[3, 3]),
        node("Tanh", ["d3"], ["d4"], "/dec/e"),
        node("Unsqueeze", ["d4", "zero"], ["output"], "/dec/f"),
    ]  # fmt: skip
    inputs = [
        helper.make_tensor_value_info("input", TensorProto.INT64, ["batch", "phonemes"]),
        helper.make_tensor_value_info("input_lengths", TensorProto.INT64, ["batch"]),
        helper.make_tensor_value_info("scales", TensorProto.FLOAT, [3]),
    ]
    if speakers:
        inputs.append(helper.make_tensor_value_info("sid", TensorProto.INT64, ["batch"]))
        named = [
            node("Gather", [weight("emb_g", 2, 8), "sid"], ["g0"]),
            node("Unsqueeze", ["g0", constant("last", [-1])], ["g"]),
            node("Add", ["d0", "g"], ["sum"], "/dec/g"),
        ]
        place = next(i for i, one in enumerate(nodes) if one.name == "/dec/b")
        nodes[place:place] = named
    if not divisible:
        weights = {name.replace("dec.conv_pre", "other"): w for name, w in weights.items()}
        for one in nodes:
            one.input[:] = [name.replace("dec.conv_pre", "other") for name in one.input]
    output = helper.make_tensor_value_info("output", TensorProto.FLOAT, None)
    initializers = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "voice", inputs, [output], initializers)
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path
    )
    described = config(speakers=speakers, **changed)
    path.with_name(f"{path.name}.json").write_text(json.dumps(described), encoding="utf-8")
    return path
