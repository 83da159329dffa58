"""Whisper against transformers in float32: the encoder's states and the decoder's logits."""

import numpy as np
import pytest
import torch

from galley.engine.read_model import read_model
from galley.graph.program import Op
from galley.ops.batch import EncoderBatch
from galley.ops.executor import encode
from galley.ops.reference import ReferenceExecutor
from galley.ops.reference_step import Step
from galley.ops.tiles import Tiles
from galley.settings.engine import DType, EngineSettings, ExecutorName, WeightDType
from galley.types import blocks_for
from tests.checkpoints import (
    WHISPER_VARIANTS,
)
from tests.conftest import CheckpointMaker
from tests.models.whisper import (
    EXECUTORS,
    encoded,
    executor_of,
    random_features,
    random_ids,
    run,
    truth,
)


@pytest.mark.parametrize("variant", WHISPER_VARIANTS)
def test_encoder_states_agree(variant: str, checkpoint: CheckpointMaker) -> None:
    """The rows of the last layer norm are the encoder's states."""
    folder = checkpoint(variant)
    settings = EngineSettings(model=str(folder), executor="reference", threads=1)
    model = read_model(settings, folder)
    assert model.program.encoder
    states: list[torch.Tensor] = []

    class Spy(ReferenceExecutor):
        def _layer_norm(self, op: Op, step: Step, inputs: list[Tiles]) -> Tiles:
            result = super()._layer_norm(op, step, inputs)
            states.append(step.layout.gather(result))
            return result

    spy = Spy(model.program, model.weights, model.options)
    spy.allocate_kv(40)
    frames = model.program.encoder.max_positions
    features = random_features(1, model.program.encoder.mels, frames)
    table = np.arange(blocks_for(frames // 2))
    encode(spy, EncoderBatch(features, np.array([0, frames]), (table,)))
    with torch.inference_mode():
        whole = torch.from_numpy(features.T.copy())[None]
        expected = truth(folder).model.encoder(whole).last_hidden_state[0]
    assert (states[-1] - expected).abs().max() <= 1e-4


@pytest.mark.parametrize("name", EXECUTORS)
@pytest.mark.parametrize("variant", WHISPER_VARIANTS)
def test_logits_agree_for_windows_of_any_length(
    variant: str, name: ExecutorName, checkpoint: CheckpointMaker
) -> None:
    folder = checkpoint(variant)
    model = truth(folder)
    executor = executor_of(folder, name=name)
    longest = 2 * model.config.max_source_positions
    for frames in (longest, longest - 1, 33, 2, 1):
        features = random_features(frames, model.config.num_mel_bins, frames)
        ids = random_ids(frames, 50)
        with torch.inference_mode():
            expected = model(
                encoder_outputs=(encoded(model, features),), decoder_input_ids=torch.tensor([ids])
            ).logits[0]
        got = run(executor, [features], [ids])
        assert np.abs(got - expected.numpy()).max() <= 1e-4 * expected.abs().max(), frames


@pytest.mark.parametrize("name", EXECUTORS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("variant", WHISPER_VARIANTS)
def test_a_window_has_the_same_bits_alone_and_in_any_batch(
    variant: str, dtype: DType, name: ExecutorName, checkpoint: CheckpointMaker
) -> None:
    executor = executor_of(checkpoint(variant), dtype, name)
    mels = 128 if "128" in variant else 80
    windows = [random_features(i, mels, frames) for i, frames in enumerate((1, 31, 64, 97, 150))]
    prompts = [random_ids(i, 3 + 7 * i) for i in range(len(windows))]
    alone = [run(executor, [w], [p]) for w, p in zip(windows, prompts, strict=True)]
    for order in ((4, 3, 2, 1, 0), (2, 0, 4), (1, 3)):
        together = run(
            executor, [windows[i] for i in order], [prompts[i] for i in order], first_block=16
        )
        assert np.array_equal(together, np.concatenate([alone[i] for i in order])), order


@pytest.mark.parametrize(("dtype", "weight_dtype"), [("bfloat16", "auto"), ("float32", "int8")])
@pytest.mark.parametrize("variant", WHISPER_VARIANTS)
def test_rounded_weights_stay_near_float32(
    variant: str, dtype: DType, weight_dtype: WeightDType, checkpoint: CheckpointMaker
) -> None:
    folder = checkpoint(variant)
    window, prompt = random_features(3, 128 if "128" in variant else 80, 150), random_ids(3, 50)
    exact = run(executor_of(folder), [window], [prompt])
    rounded = run(executor_of(folder, dtype, weight_dtype=weight_dtype), [window], [prompt])
    error = np.abs(rounded - exact)
    assert 0 < error.mean() < 0.03 * np.abs(exact).max()
