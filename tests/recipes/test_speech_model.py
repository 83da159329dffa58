"""The bundled speech model's recipe: batches, tokenizer, checkpoint, and the training steps."""

import functools
import itertools
import json
import random
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from transformers import GenerationMixin, WhisperForConditionalGeneration, WhisperProcessor
from transformers.generation import LogitsProcessorList, SuppressTokensLogitsProcessor

from galley import QualityRules, TranscribeOptions, Transcriber
from galley.settings.engine import ExecutorName
from galley.speech.features import LogMel
from recipes.assistant.tokenizer import load_tokenizer, token_id
from recipes.assistant.wordings import TRAINING
from recipes.speech.batches import ALPHABET, Batch, Draw, Maker, feed
from recipes.speech.evaluate import evaluate
from recipes.speech.heads import Map, choose, choose_heads, mean_error
from recipes.speech.model import SpeechConfig, SpeechModel, load_checkpoint, save_checkpoint
from recipes.speech.model import transcribe as torch_transcribe
from recipes.speech.pool import LONGEST, Pool, Said, Utterance, encode
from recipes.speech.sentences import SpokenSource, sentence
from recipes.speech.spoken import letters, spoken
from recipes.speech.tokenizer import (
    END,
    LANGUAGE,
    NO_SPEECH,
    NO_TIMESTAMPS,
    PREVIOUS,
    START,
    TASK,
    save_tokenizer,
    time_id,
    train_tokenizer,
)
from recipes.speech.train import (
    Recipe,
    Trainer,
    build_tokenizer,
    make_maker,
    rate_factor,
    train,
)
from recipes.speech.voices import RATE, Samples
from tests.speech.recordings import encode as encode_recording

SMALL = SpeechConfig(
    text_tokens=400, width=32, heads=2, ffn=64, encoder_layers=2, decoder_layers=1,
    target_positions=64,
)  # fmt: skip
ROOMY = replace(SMALL, target_positions=256)
RECIPE = Recipe(
    steps=40, shards=1, warm_up=2, tokenizer_sentences=400,
    draw=Draw(seconds=20, group_seconds=10, short_steps=1, mask_from=0),
)  # fmt: skip
PROMPT = (START, LANGUAGE, TASK, NO_TIMESTAMPS)


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pool of 40 utterances of beeps, and a tokenizer: the first outputs of a run."""
    folder = tmp_path_factory.mktemp("work")
    save_tokenizer(build_tokenizer(RECIPE, SMALL), folder, SMALL.target_positions)
    rng = random.Random(1)
    source = SpokenSource(rng, held_out=False)
    utterances: list[Utterance] = []
    sounds = []
    at = 0
    while len(utterances) < 40:
        said: list[Said] = []
        for _ in range(rng.choice((1, 2))):
            text = sentence(source, TRAINING)
            way = spoken(text, rng)
            start = said[-1].end + 0.3 if said else 0.0
            said.append(Said(text, way, start, start + len(letters(way)) / 15))
        count = round(said[-1].end * RATE)
        if count > LONGEST * RATE:
            continue
        tone = np.sin(np.arange(count) * rng.uniform(0.3, 2.0)).astype(np.float32)
        utterances.append(Utterance(tuple(said), first=at, samples=count))
        sounds.append(encode(0.5 * tone))
        at += count
    pool = Pool(folder / "pool", RECIPE.seed, RECIPE.shards)
    pool.folder.mkdir()
    pool.write(0, utterances, np.concatenate(sounds))
    return folder


@pytest.fixture(scope="module")
def maker(work: Path) -> Maker:
    return make_maker(work, RECIPE, SMALL)


@pytest.fixture(scope="module")
def tokenizer(work: Path) -> Tokenizer:
    return load_tokenizer(work)


def same(a: Batch, b: Batch) -> bool:
    return all(
        np.array_equal(getattr(a, name), getattr(b, name))
        for name in ("features", "frames", "ids", "targets", "weights", "letters", "letter_counts")
    )


def test_batches_are_a_function_of_seed_and_step(work: Path, maker: Maker) -> None:
    again = list(feed(functools.partial(make_maker, work, RECIPE, SMALL), range(7, 10), workers=2))
    for step, made in zip(range(7, 10), again, strict=True):
        batches = maker.batches(step)
        assert len(batches) == len(made)
        assert all(same(a, b) for a, b in zip(batches, made, strict=True))
    assert not same(maker.batches(7)[0], maker.batches(8)[0])


def test_rows_have_the_transcript_for_every_form_of_prompt(
    maker: Maker, tokenizer: Tokenizer
) -> None:
    texts = {utterance.written for utterance in maker.pool.utterances[0]}
    spelled = {utterance.letters for utterance in maker.pool.utterances[0]}
    ids = {name: token_id(tokenizer, name) for name in (*PROMPT, PREVIOUS, NO_SPEECH, END)}
    forms, lengths = set(), set()
    for batch in (batch for step in range(30) for batch in maker.batches(step)):
        spellings = np.split(batch.letters, np.cumsum(batch.letter_counts)[:-1])
        lengths.add(batch.features.shape[1])
        assert np.isfinite(batch.features).all()
        for row, utterance in enumerate(spellings):
            known = batch.ids[row].tolist()
            position = known.index(ids[START])
            weighed = batch.weights[row] > 0
            written = [t for t in batch.targets[row][weighed].tolist() if t < SMALL.text_tokens]
            word = "".join(ALPHABET[letter - 1] for letter in utterance.tolist())
            if not word:
                forms.add("silence")
                assert batch.targets[row][position] == ids[NO_SPEECH]
                assert written == []
                continue
            forms |= {name for name in ids if ids[name] in known}
            forms.add("named" if ids[LANGUAGE] in known else "unnamed")
            assert tokenizer.decode(written) in texts
            assert word in spelled
            assert batch.targets[row][weighed][-1] == ids[END]
            assert not weighed[:position].any()
            times = [i for i in known if i >= time_id(tokenizer, 0)]
            assert bool(times) != (ids[NO_TIMESTAMPS] in known)
            assert times == sorted(times)
            assert len(utterance) < batch.frames[row] / 2
    assert forms >= {"silence", "named", "unnamed", NO_TIMESTAMPS, PREVIOUS}
    assert max(lengths) == 800  # windows padded as peers do
    assert len(lengths) > 5


def test_special_tokens_lie_where_peers_look(tokenizer: Tokenizer) -> None:
    text = "My account number is AC-48213377, it's £42.50 — naïve?"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert token_id(tokenizer, END) == SMALL.text_tokens
    assert token_id(tokenizer, NO_SPEECH) + 1 == token_id(tokenizer, NO_TIMESTAMPS)
    assert token_id(tokenizer, NO_TIMESTAMPS) + 1 == time_id(tokenizer, 0.0)
    assert time_id(tokenizer, 8.0) + 1 == tokenizer.get_vocab_size() == SMALL.vocab_size
    assert token_id(tokenizer, "<|5.62|>") == time_id(tokenizer, 5.62)
    # The first token of each is on the peers' list of non-speech tokens.
    assert all(len(tokenizer.encode(symbol).ids) == 1 for symbol in (" -", " '"))
    with pytest.raises(ValueError, match="give more texts"):
        train_tokenizer(["one text"], 400, 8)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> Path:
    """Random weights large enough that greedy tokens differ from each other."""
    folder = tmp_path_factory.mktemp("checkpoint")
    torch.manual_seed(4)
    model = SpeechModel(SMALL)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                parameter.add_((1.0 if "embed" in name else 0.3) * torch.randn_like(parameter))
    save_tokenizer(tokenizer, folder, SMALL.target_positions)
    save_checkpoint(model, tokenizer, folder)
    return folder


def noise(seconds: float) -> Samples:
    """Return samples that 16 bits represent exactly."""
    drawn = np.random.default_rng(8).standard_normal(round(seconds * 16_000))
    whole: Samples = np.round(3000 * drawn).clip(-32768, 32767).astype(np.float32)
    return whole / np.float32(32768)


def test_transformers_computes_the_same(checkpoint: Path) -> None:
    truth = WhisperForConditionalGeneration.from_pretrained(checkpoint, dtype=torch.float32).eval()
    processor = WhisperProcessor.from_pretrained(checkpoint)
    model, tokenizer = load_checkpoint(checkpoint), load_tokenizer(checkpoint)
    samples = noise(3.3)
    features = processor(samples, sampling_rate=16_000, return_tensors="pt").input_features
    own = torch.from_numpy(LogMel(chunk_seconds=8)(samples))[None]
    assert torch.allclose(features.transpose(1, 2), own, atol=1e-4)
    prompt = [token_id(tokenizer, name) for name in PROMPT]
    ids = torch.tensor([[*prompt, 5, 300, 77]])
    with torch.inference_mode():
        expected = truth(input_features=features, decoder_input_ids=ids).logits
        states, _ = model.decoder(ids, model.decoder.listen(model.encoder(own)))
        torch.testing.assert_close(model.decoder.logits(states), expected, atol=2e-3, rtol=1e-4)
        generated = GenerationMixin.generate(
            truth, features, decoder_input_ids=torch.tensor([prompt]), max_new_tokens=25,
            do_sample=False, suppress_tokens=None, begin_suppress_tokens=None,
        )  # fmt: skip
    stop = token_id(tokenizer, END)
    [written] = torch_transcribe(model, own, prompt, stop, 25)
    answer = generated[0, len(prompt) :].tolist()
    assert written == (answer[: answer.index(stop)] if stop in answer else answer)
    assert len(set(written)) > 3
    encoded = processor.tokenizer("Hello there.", add_special_tokens=False).input_ids
    assert encoded == tokenizer.encode("Hello there.").ids


@pytest.mark.parametrize("executor", ["reference", "cpu"])
def test_galley_writes_what_transformers_writes(
    checkpoint: Path, executor: ExecutorName, tmp_path: Path
) -> None:
    # transformers only has full windows, so here Galley must pad, too.
    shutil.copytree(checkpoint, tmp_path, dirs_exist_ok=True)
    preprocessor = json.loads((checkpoint / "preprocessor_config.json").read_text())
    assert preprocessor.pop("padding") == "do_not_pad"
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(preprocessor))
    truth = WhisperForConditionalGeneration.from_pretrained(checkpoint, dtype=torch.float32).eval()
    tokenizer = load_tokenizer(checkpoint)
    samples = noise(5)
    prompt = [token_id(tokenizer, name) for name in PROMPT]
    features = torch.from_numpy(LogMel(chunk_seconds=8)(samples).T.copy())[None]
    config = truth.generation_config
    with torch.inference_mode():
        generated = GenerationMixin.generate(
            truth, features, decoder_input_ids=torch.tensor([prompt]), max_new_tokens=32,
            do_sample=False, suppress_tokens=None, begin_suppress_tokens=None,
            logits_processor=LogitsProcessorList(
                [SuppressTokensLogitsProcessor(config.suppress_tokens)]
            ),
        )  # fmt: skip
    times = time_id(tokenizer, 0.0)
    expected = tokenizer.decode([t for t in generated[0, len(prompt) :].tolist() if t < times])
    rules = QualityRules(
        beam_size=1,
        temperatures=(0.0,),
        compression_ratio_threshold=None,
        log_prob_threshold=None,
        no_speech_threshold=None,
    )
    options = TranscribeOptions(rules=rules, speech=None, timestamps=False)
    recording = encode_recording("wav", samples)
    with Transcriber(tmp_path, executor=executor, dtype="float32", threads=1) as galley:
        written = galley.transcribe(recording, options).text()
    # Random weights write timestamps inside words, where Galley starts a new segment.
    assert "".join(written.split()) == "".join(expected.split()) != ""


def parameters(trainer: Trainer) -> list[torch.Tensor]:
    return [*trainer.model.parameters(), *trainer.spelling.parameters()]


def test_a_continued_run_is_the_run(maker: Maker, tmp_path: Path) -> None:
    device = torch.device("cpu")
    whole, first, second = (Trainer(RECIPE, SMALL, device) for _ in range(3))
    for step in range(3):
        whole.train_step(maker.batches(step))
    for step in range(2):
        first.train_step(maker.batches(step))
    first.save(tmp_path / "checkpoint.pt")
    second.load(tmp_path / "checkpoint.pt")
    assert second.step == 2
    second.train_step(maker.batches(2))
    assert all(map(torch.equal, parameters(whole), parameters(second)))


def test_training_lowers_both_losses(work: Path) -> None:
    draw = replace(RECIPE.draw, augment=False, seconds=10)
    recipe = replace(RECIPE, draw=draw, steps=30)
    maker = make_maker(work, recipe, SMALL)
    trainer = Trainer(recipe, SMALL, torch.device("cpu"))
    batches = maker.batches(0)
    losses = [trainer.train_step(batches) for _ in range(30)]
    assert losses[-1].writing < 0.75 * losses[0].writing
    assert losses[-1].spelling < 0.75 * losses[0].spelling


@pytest.mark.skipif(shutil.which("espeak-ng") is None, reason="espeak-ng is not installed")
def test_a_run_from_nothing_leaves_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("recipes.speech.pool.SHARD", 12)
    few = functools.partial(evaluate, first=2)
    monkeypatch.setattr("recipes.speech.train.evaluate", few)
    recipe = replace(RECIPE, steps=2, listen_every=1000)
    output, work = tmp_path / "output", tmp_path / "work"
    for steps in (2, 3):  # the second continues the first
        train(replace(recipe, steps=steps), SMALL, output, work, "cpu", workers=1)
    shown = capsys.readouterr().out
    assert "continuing at step 2" in shown
    assert "step 3  writing" in shown
    assert shown.count("target missed") == 2
    assert len(list(load_checkpoint(output).parameters())) > 10
    assert (output / "tokenizer.json").read_bytes() == (work / "tokenizer.json").read_bytes()


def test_the_rate_rises_stays_and_falls_to_zero() -> None:
    recipe = Recipe()
    factors = [rate_factor(recipe, step) for step in range(recipe.steps + 1)]
    assert factors[0] < 0.01
    assert factors[recipe.warm_up] == factors[round(0.35 * recipe.steps)] == 1.0
    assert factors[-1] == 0.0
    assert factors[-100] < 0.1


def test_heads_are_chosen_by_how_well_they_find_sentences() -> None:
    """Two of four heads locate six tokens, each of them most clearly for some of these."""
    rng = np.random.default_rng(0)
    maps = []
    for _ in range(5):
        rows = np.sort(rng.choice(np.arange(5, 100), 5, replace=False))
        right = np.zeros((6, 100), np.float32)
        for token, (begin, end) in enumerate(itertools.pairwise([0, *rows, 100])):
            right[token, begin:end] = 1
        seen = np.zeros((4, 6, 100), np.float32)
        seen[0] = np.roll(right, -30, axis=1)
        seen[2] = np.roll(right, 20, axis=1)
        seen[1], seen[3] = right, right
        seen[1, 4:], seen[3, :2] = 0.1 * seen[2, 4:], 0.1 * seen[0, :2]
        maps.append(Map(seen, tuple((token + 1, float(row)) for token, row in enumerate(rows))))
    chosen, error = choose(maps)
    assert sorted(chosen) == [1, 3]
    assert error == mean_error(maps, [1, 3]) <= 1.0
    assert mean_error(maps, [2]) > 5


@pytest.mark.skipif(shutil.which("espeak-ng") is None, reason="espeak-ng is not installed")
def test_chosen_heads_are_named_in_the_checkpoint(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recipes.speech.heads.ITEMS", 2)
    torch.manual_seed(0)
    tokenizer = load_tokenizer(work)
    save_tokenizer(tokenizer, tmp_path, ROOMY.target_positions)
    save_checkpoint(SpeechModel(ROOMY), tokenizer, tmp_path)
    before = json.loads((tmp_path / "generation_config.json").read_text())
    found = choose_heads(tmp_path)
    after = json.loads((tmp_path / "generation_config.json").read_text())
    heads = after.pop("alignment_heads")
    assert after == before
    assert 1 <= len(heads) <= 2
    assert found.startswith(f"heads {heads[0][0]}.{heads[0][1]}")
    with Transcriber(tmp_path, threads=1) as transcriber:
        assert transcriber.info.speech is not None
        assert transcriber.info.speech.alignment_heads == tuple(map(tuple, heads))
