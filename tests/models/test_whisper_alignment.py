"""Alignment heads against transformers, and requests that align a given text."""

import itertools
import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from galley.errors import CheckpointError, RequestError
from galley.formats.checkpoint import Checkpoint
from galley.llm.local import LocalEngine
from galley.models.registry import build_program
from galley.models.speech import read_speech, with_aligner
from galley.ops.executor import align
from galley.settings.engine import ExecutorName
from galley.types.audio import Alignment, SpeechInfo
from tests.checkpoints import (
    ALIGNMENT_HEADS,
    EOS_TEXT,
    VOCAB_SIZE,
    WHISPER_GENERATION,
    WHISPER_VARIANTS,
)
from tests.conftest import CheckpointMaker
from tests.models.whisper import (
    EXECUTORS,
    GREEDY,
    PROMPT,
    START,
    answers,
    ask,
    ask_alignment,
    check_alignment,
    executor_of,
    random_features,
    random_ids,
    run,
    tokens_of,
    truth,
)


def test_without_named_heads_the_latter_half_of_the_decoder_aligns(
    checkpoint: CheckpointMaker, tmp_path: Path
) -> None:
    """As if openai/whisper's ``set_alignment_heads`` were not called, unless that exceeds a frame."""
    folder = tmp_path / "whisper"
    shutil.copytree(checkpoint("whisper"), folder)

    def heads(named: list[list[int]] | None, **config: int) -> tuple[tuple[int, int], ...]:
        generation = {**WHISPER_GENERATION, "alignment_heads": named}
        (folder / "generation_config.json").write_text(json.dumps(generation))
        opened = Checkpoint.open(folder)
        changed = {**opened.config, **config}
        speech = read_speech(changed, opened.generation, build_program(changed))
        assert speech is not None
        return speech.alignment_heads

    assert heads(None) == tuple((1, head) for head in range(4))
    assert heads([]) == heads(None)
    assert heads(None, decoder_layers=5) == tuple(itertools.product((2, 3, 4), range(4)))
    assert heads(None, decoder_layers=41) == ()
    assert heads([[0, 1]], decoder_layers=41) == ((0, 1),)
    with pytest.raises(CheckpointError, match="lists 81 heads"):
        heads([[0, 1]] * 81)
    config = Checkpoint.open(folder).config
    info = SpeechInfo(
        mels=80, max_frames=150, stride=2, start_token=START, alignment_heads=((0, 9),)
    )
    with pytest.raises(CheckpointError, match="head 9 of layer 0"):
        with_aligner(build_program(config), config, info)


@pytest.mark.parametrize("name", EXECUTORS)
@pytest.mark.parametrize("variant", WHISPER_VARIANTS)
def test_alignment_heads_look_where_those_of_transformers_do(
    variant: str, name: ExecutorName, checkpoint: CheckpointMaker
) -> None:
    folder = checkpoint(variant)
    model, executor = truth(folder), executor_of(folder, name=name)
    mels, longest = model.config.num_mel_bins, 2 * model.config.max_source_positions
    windows = [random_features(i, mels, frames) for i, frames in enumerate((longest, 77))]
    prompts = [random_ids(1, 20), random_ids(2, 33)]
    got = run(executor, windows, prompts, call=partial(align, executor))
    heads = ALIGNMENT_HEADS[variant]
    assert got.shape == (53, len(heads), longest // 2)
    check_alignment(model, windows, prompts, got, heads)


@pytest.mark.parametrize("name", EXECUTORS)
def test_an_alignment_is_a_request_over_a_given_text(
    name: ExecutorName, checkpoint: CheckpointMaker, speech: Callable[..., LocalEngine]
) -> None:
    """In chunks, together with other requests, after a preemption: the same weights as in one call."""
    executor = executor_of(checkpoint("whisper"), name=name)
    windows = [random_features(i, 80, 150 - 10 * i) for i in range(3)]
    texts = [[*PROMPT, *random_ids(i, 30 + i), EOS_TEXT] for i in range(3)]
    for budget, tokens in ((256, 1024), (8, 1024), (16, 160)):
        engine = speech(
            max_batch_tokens=budget, kv_cache_tokens=tokens, max_running=8, executor=name
        )
        requests = [ask_alignment(engine, w, t) for w, t in zip(windows, texts, strict=True)]
        requests += [r for w in windows for r in ask(engine, w, GREEDY)]
        outputs = answers(engine, requests)
        for window, text, (output,) in zip(windows, texts, outputs, strict=False):
            found = output.result
            assert isinstance(found, Alignment)
            assert (found.tokens, found.heads, found.rows) == (len(text), 3, len(window) // 2)
            got = np.frombuffer(found.data, "<f4").reshape(found.tokens, found.heads, found.rows)
            alone = run(executor, [window], [text], call=partial(align, executor))
            assert np.array_equal(got, alone[:, :, : found.rows])
        # What an aligner leaves in the cache does not cover all layers, so it must not be shared.
        fresh = speech(prefix_cache=False, executor=name)
        again = [r for w, t in zip(windows, texts, strict=True) for r in ask(engine, w, GREEDY, t)]
        for request, answer in zip(again, answers(engine, again), strict=True):
            assert tokens_of(answer) == tokens_of(answers(fresh, [request])[0])


def test_alignments_that_cannot_be_are_refused(speech: Callable[..., LocalEngine]) -> None:
    engine, features = speech(), random_features(0, 80, 150)
    most = engine.info.max_request_tokens
    for prompt, message in (
        ([], "empty"),
        ([VOCAB_SIZE], "contains token id"),
        ([1] * (most + 1), f"{most + 1} tokens"),
    ):
        with pytest.raises(RequestError, match=message):
            ask_alignment(engine, features, prompt)
    with pytest.raises(RequestError, match="10 values in a frame"):
        ask_alignment(engine, features[:, :10], PROMPT)
