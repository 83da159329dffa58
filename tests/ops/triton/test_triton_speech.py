"""Whisper on the GPU executor: logits, alignment and bits, as transformers has them."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from tests.ops.triton.device import DEVICE, ON_GPU

import torch

from galley.llm.local import LocalEngine
from galley.ops.choice import executor_factory
from galley import SamplingParams
from galley.engine.read_model import read_model
from galley.ops.executor import Executor, align
from galley.settings.engine import DType, EngineSettings, KVType
from galley.types.audio import Alignment
from tests.checkpoints import ALIGNMENT_HEADS
from tests.conftest import CheckpointMaker
from tests.thorough import THOROUGH, unless
from tests.models.whisper import (
    PROMPT,
    answers,
    ask,
    ask_alignment,
    check_alignment,
    encoded,
    greedy,
    random_features,
    random_ids,
    run,
    tokens_of,
    truth,
)


def executor_of(folder: Path, dtype: DType = "float32", kv_dtype: KVType = "auto") -> Executor:
    settings = EngineSettings(
        model=str(folder), dtype=dtype, kv_dtype=kv_dtype, executor="gpu", device=DEVICE, threads=1
    )
    model = read_model(settings, folder, "gpu")
    executor = executor_factory("gpu")(model.program, model.weights, model.options)
    executor.allocate_kv(256)
    return executor


@pytest.mark.parametrize("kv_dtype", ["auto", unless(ON_GPU, "int8"), unless(ON_GPU, "int4")])
def test_logits_are_those_of_transformers(kv_dtype: KVType, checkpoint: CheckpointMaker) -> None:
    """The longest window, an odd one, and one of a single frame; with int8 keys and values, the odd one."""
    folder = checkpoint("whisper")
    model, executor = truth(folder), executor_of(folder, kv_dtype=kv_dtype)
    longest = 2 * model.config.max_source_positions
    for frames in (longest, 33, 1) if kv_dtype == "auto" else (33,):
        features = random_features(frames, model.config.num_mel_bins, frames)
        ids = random_ids(frames, 7)
        with torch.inference_mode():
            states = encoded(model, features)
            wanted = model(encoder_outputs=(states,), decoder_input_ids=torch.tensor([ids]))
        expected = wanted.logits[0].numpy()
        got = run(executor, [features], [ids])
        most = {"auto": 1e-4, "int8": 3e-2}.get(kv_dtype, 0.3)
        assert np.abs(got - expected).max() <= most * np.abs(expected).max(), frames


def test_a_window_has_the_same_bits_alone_and_in_any_batch(checkpoint: CheckpointMaker) -> None:
    """A prompt of one token is a graph on a GPU, and attention to its window is split into stretches."""
    executor = executor_of(checkpoint("whisper"), "bfloat16" if ON_GPU else "float32")
    windows = [random_features(i, 80, frames) for i, frames in enumerate((31, 150))]
    prompts = [random_ids(i, rows) for i, rows in enumerate((9, 1))]
    alone = [run(executor, [w], [p]) for w, p in zip(windows, prompts, strict=True)]
    together = run(executor, windows[::-1], prompts[::-1], first_block=16)
    assert np.array_equal(together, np.concatenate(alone[::-1]))


def test_alignment_heads_look_where_those_of_transformers_do(checkpoint: CheckpointMaker) -> None:
    folder = checkpoint("whisper")
    model, executor = truth(folder), executor_of(folder)
    longest = 2 * model.config.max_source_positions
    windows = [random_features(i, 80, frames) for i, frames in enumerate((longest, 77))]
    prompts = [random_ids(1, 5), random_ids(2, 7)]
    got = run(executor, windows, prompts, call=partial(align, executor))
    heads = ALIGNMENT_HEADS["whisper"]
    assert got.shape == (12, len(heads), longest // 2)
    check_alignment(model, windows, prompts, got, heads)


@pytest.mark.skipif(not (THOROUGH or ON_GPU), reason="takes long: make thorough runs it")
def test_an_engine_transcribes_and_aligns_as_transformers(checkpoint: CheckpointMaker) -> None:
    """Two windows together: a step has a prompt's rows and decoding ones, and windows are encoded in it."""
    folder = checkpoint("whisper")
    model, executor = truth(folder), executor_of(folder)
    settings = EngineSettings(
        model=str(folder),
        executor="gpu",
        device=DEVICE,
        dtype="float32",
        threads=1,
        kv_cache_tokens=1024,
    )
    windows = [random_features(i, 80, frames) for i, frames in enumerate((150, 77))]
    params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
    text = [*PROMPT, 5, 6]
    engine = LocalEngine(settings)
    try:
        requests = [request for window in windows for request in ask(engine, window, params)]
        for window, outputs in zip(windows, answers(engine, requests), strict=True):
            assert tokens_of(outputs) == greedy(model, window, PROMPT, 4)
        [[output]] = answers(engine, [ask_alignment(engine, windows[1], text)])
        found = output.result
        assert isinstance(found, Alignment)
        got = np.frombuffer(found.data, "<f4").reshape(found.tokens, found.heads, found.rows)
        alone = run(executor, windows[1:], [text], call=partial(align, executor))
        assert np.array_equal(got, alone[:, :, : found.rows])
    finally:
        engine.close()
