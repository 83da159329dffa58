"""Distillation and quantization-aware training on tiny models: output, resuming, losses, refusals."""

import filecmp
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from galley import LLM, RequestError, SamplingParams, SettingsError, UnsupportedModel
from galley.cli.main import app
from galley.formats.vocabulary import first_difference
from galley.quant.grid import Scheme
from galley.train import loss as losses
from galley.train.forward import logits_of
from galley.train.run import qat_student
from galley.train.student import Student, from_config, from_layers, from_model
from galley.train.trainer import Example, batches, rate_factor
from tests.checkpoints import make_checkpoint, random_ids
from tests.cli.command import galley
from tests.conftest import CheckpointMaker
from tests.missing import without
from tests.thorough import examples
from tests.train.tiny import EXACT, TEXTS, read, run, served

TEXT = random_ids(99, 40)


@pytest.fixture(scope="module")
def folder(checkpoint: CheckpointMaker) -> Path:
    return checkpoint("llama-mha-tied")


def config_of(folder: Path, path: Path, **changes: Any) -> Path:
    config = json.loads((folder / "config.json").read_text())
    path.write_text(json.dumps({**config, "hidden_size": 32, "num_hidden_layers": 1, **changes}))
    return path


def student_logits(student: Student, text: list[int]) -> Any:
    ids = torch.tensor([text])
    with torch.no_grad():
        weights = student.weights(stored=True)
        return logits_of(
            student.program, weights, ids, torch.ones_like(ids, dtype=torch.bool)
        ).numpy()


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_student_learns_and_is_an_ordinary_checkpoint(
    folder: Path, tmp_path: Path, dtype: str
) -> None:
    teacher = read(folder)
    student = from_config(config_of(folder, tmp_path / "c.json", dtype=dtype), teacher, 0)
    out = tmp_path / "out"
    report = run(teacher, student, out, steps=40, learning_rate=1e-2)
    assert report.after.kl < 0.9 * report.before.kl
    mine = student_logits(student, TEXT)
    np.testing.assert_allclose(served(out, TEXT), mine, rtol=1e-4, atol=1e-4)
    truth = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
    with torch.inference_mode():
        known = truth(torch.tensor([TEXT])).logits[0].numpy()
    np.testing.assert_allclose(known, mine, rtol=1e-3, atol=1e-3)
    assert first_difference(folder, out) is None
    with LLM(str(folder), draft_model=str(out), speculation="draft", threads=1) as llm:
        assert llm.generate("the cat", SamplingParams(max_tokens=4))[0].choices[0].token_ids


def test_an_interrupted_run_resumes_and_writes_the_same(folder: Path, tmp_path: Path) -> None:
    teacher, config = read(folder), config_of(folder, tmp_path / "c.json")

    def distilled(out: Path, **changes: Any) -> None:
        run(teacher, from_config(config, teacher, 0), out, save_every=5, **changes)

    whole, broken = tmp_path / "whole", tmp_path / "broken"
    distilled(whole)

    def interrupted(step: int, steps: int) -> float:
        if step == 8:
            raise KeyboardInterrupt
        return rate_factor(step, steps)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("galley.train.trainer.rate_factor", interrupted)
        with pytest.raises(KeyboardInterrupt):
            distilled(broken)
    with pytest.raises(SettingsError, match="contains a run with other"):
        distilled(broken, temperature=3.0)
    distilled(broken)
    names = sorted(path.name for path in whole.iterdir())
    assert names == sorted(path.name for path in broken.iterdir())
    assert filecmp.cmpfiles(whole, broken, names, shallow=False)[0] == names
    with pytest.raises(SettingsError, match="not empty"):
        distilled(broken)


@pytest.mark.parametrize(
    ("scheme", "weight_dtype"),
    [
        (Scheme(4, 16), "auto"),
        (Scheme(4, 32, symmetric=False), "auto"),
        (Scheme(8), "auto"),
        (None, "int4"),
        (None, "int8"),
    ],
    ids=str,
)
def test_the_trained_loss_is_the_served_loss(
    checkpoint: CheckpointMaker, tmp_path: Path, scheme: Scheme | None, weight_dtype: Any
) -> None:
    """The reference executor's model of the checkpoint has the same logits within rounding."""
    teacher = read(checkpoint("llama-mha-tied"))
    bits = "int4" if scheme and scheme.bits == 4 else "int8"
    student = qat_student(teacher, bits if scheme else weight_dtype, scheme=scheme)
    serve = replace(EXACT, weight_dtype=weight_dtype)
    out = tmp_path / "out"
    report = run(teacher, student, out, serve, [Example(TEXT)], kl_weight=1.0, steps=30)
    np.testing.assert_allclose(
        served(out, TEXT, serve), student_logits(student, TEXT), rtol=1e-4, atol=1e-4
    )
    assert report.served.perplexity == pytest.approx(np.exp(report.after.cross_entropy), rel=1e-4)
    if bits == "int4" or weight_dtype == "int4":
        assert report.after.kl < 0.8 * report.before.kl


def test_layers_of_the_teacher(tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        "num_hidden_layers": 3,
        "layer_types": [*["sliding_attention"] * 2, "full_attention"],
    }
    folder = make_checkpoint(tmp_path / "teacher", "gemma3", **changes)
    teacher = read(folder)
    out = tmp_path / "out"
    student = from_layers(teacher, [1, 2])
    untouched = student_logits(student, TEXT)
    truth = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    truth.model.layers = truth.model.layers[1:]
    truth.config.layer_types, truth.config.num_hidden_layers = truth.config.layer_types[1:], 2
    truth.config.use_cache = False
    with torch.inference_mode():
        known = truth(torch.tensor([TEXT])).logits[0].numpy()
    np.testing.assert_allclose(untouched, known, rtol=1e-3, atol=1e-3)
    report = run(teacher, student, out, kl_weight=0.5)
    assert report.after.kl < report.before.kl
    np.testing.assert_allclose(
        served(out, TEXT), student_logits(student, TEXT), rtol=1e-4, atol=1e-4
    )
    config = json.loads((folder / "config.json").read_text())
    del config["layer_types"]
    (folder / "config.json").write_text(json.dumps({**config, "sliding_window_pattern": 3}))
    with pytest.raises(SettingsError, match="layer 2 of the teacher would have another window"):
        from_layers(read(folder), [1, 2])
    with pytest.raises(SettingsError, match="--layers 2,1: expected ascending numbers from 0 to 2"):
        from_layers(teacher, [2, 1])


def test_a_model_that_exists_learns_from_one_with_more_rows(tmp_path: Path) -> None:
    """As in many families: the same tokens, but another padding of the embedding."""
    teacher = read(make_checkpoint(tmp_path / "teacher", "llama", vocab_size=352))
    folder = make_checkpoint(tmp_path / "small", "qwen2", seed=5)
    student, out = from_model(read(folder), teacher), tmp_path / "out"
    np.testing.assert_allclose(
        student_logits(student, TEXT), served(folder, TEXT), rtol=1e-4, atol=1e-4
    )
    report = run(teacher, student, out)
    assert report.after.kl < report.before.kl
    np.testing.assert_allclose(
        served(out, TEXT), student_logits(student, TEXT), rtol=1e-4, atol=1e-4
    )
    beyond = [*TEXTS, Example([*TEXT, 330])]
    with pytest.raises(RequestError, match="a text has token 330, but the student"):
        run(teacher, from_model(read(folder), teacher), tmp_path / "more", texts=beyond)
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    vocab = content["model"]["vocab"]
    (a, first), (b, second) = list(vocab.items())[5:7]
    vocab |= {a: second, b: first}
    path.write_text(json.dumps(content))
    with pytest.raises(SettingsError, match="their tokens differ"):
        from_model(read(folder), teacher)


@hypothesis_settings(max_examples=examples(30))
@given(seed=st.integers(0, 2**31), k=st.integers(1, 20), temperature=st.floats(0.5, 4))
def test_the_divergence_is_that_of_all_tokens_with_the_rest_as_one(
    seed: int, k: int, temperature: float
) -> None:
    random = torch.Generator().manual_seed(seed)
    p, q = torch.randn((2, 3, 20), generator=random, dtype=torch.float64)
    shown, tokens = (p / temperature).log_softmax(-1).topk(k, dim=-1)
    outcomes = []
    for logits in (p, q):
        probs = (logits / temperature).softmax(-1)
        chosen = probs.gather(-1, tokens)
        rest = (1 - chosen.sum(-1, keepdim=True)).clamp(min=0)
        outcomes.append(torch.cat((chosen, rest), -1))
    known = torch.special.xlogy(outcomes[0], outcomes[0] / outcomes[1].clamp(min=1e-6)).sum(-1)
    found = losses.divergence(q, tokens, shown, temperature)
    np.testing.assert_allclose(found, known, atol=1e-6)


@given(
    lengths=st.lists(st.integers(2, 40), min_size=1, max_size=60),
    batch_tokens=st.integers(16, 200),
    seed=st.integers(0, 9),
)
def test_batches_have_every_text_once_and_fit(
    lengths: list[int], batch_tokens: int, seed: int
) -> None:
    seen: list[int] = []
    for batch in batches(lengths, batch_tokens, seed):
        widest = max(lengths[i] for i in batch)
        assert len(batch) == 1 or widest * len(batch) <= batch_tokens
        seen += batch
        if len(seen) >= 2 * len(lengths):
            break
    assert sorted(seen[: len(lengths)]) == sorted(seen[len(lengths) :]) == list(range(len(lengths)))


def test_what_cannot_be_trained_is_refused(
    checkpoint: CheckpointMaker, folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedModel, match="is a speech model"):
        qat_student(read(checkpoint("whisper")), "int4", scheme=None)
    teacher, path = read(folder), tmp_path / "c.json"
    with pytest.raises(SettingsError, match="the teacher's 320 tokens"):
        from_config(config_of(folder, path, vocab_size=321), teacher, 0)
    short = from_config(config_of(folder, path, max_position_embeddings=16), teacher, 0)
    with pytest.raises(RequestError, match="lower --context"):
        run(teacher, short, tmp_path / "out")
    with pytest.raises(
        SettingsError, match="one of --layers, --student-config and --student-model"
    ):
        app.main(["distill", str(folder), str(tmp_path / "out")], standalone_mode=False)
    none = galley("qat", folder, tmp_path / "out", environ=without(tmp_path, "torch"))
    assert none.returncode == 2
    assert "pip install 'galley-inference[torch]'" in none.stderr


def test_the_commands(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "chats.jsonl"
    lines = [
        {"messages": [{"role": "user", "content": f"the cat sat {i} times"}]} for i in range(9)
    ]
    data.write_text("\n".join(map(json.dumps, lines)))
    few = ("--steps", 3, "--batch-tokens", 64, "--threads", 1)

    def command(*arguments: object) -> str:
        app.main(list(map(str, arguments)), standalone_mode=False)
        return capsys.readouterr().out

    shown = command("distill", folder, tmp_path / "student", data, "--layers", "1", *few)
    assert "same likeliest token" in shown
    answered = [
        {"messages": [*line["messages"], {"role": "assistant", "content": "no"}]} for line in lines
    ]
    data.write_text("\n".join(map(json.dumps, answered)))
    whole, own = (
        command(
            "distill", folder, tmp_path / f"more{len(only)}", data, "--layers", "1", *few, *only
        )
        for only in ((), ("--answers-only",))
    )
    losses = [float(shown.split("loss ")[1].split()[0]) for shown in (whole, own)]
    assert losses[0] != losses[1]  # before the first step, on other tokens
    shown = command("distill", folder, tmp_path / "on", data, "--student-model", folder, *few)
    assert "same likeliest token" in shown
    with pytest.raises(SettingsError, match="--answers-only needs data"):
        command("qat", folder, tmp_path / "none", "--answers-only", *few)
    command("qat", folder, tmp_path / "int4", "--tokens", 200, "--context", 32, "--group", 16, *few)
    config = json.loads((tmp_path / "int4" / "config.json").read_text())
    assert config["galley_quantize"]["method"] == "qat"
    assert config["quantization_config"]["config_groups"]["group_0"]["weights"]["num_bits"] == 4
