"""The recipe of a student of a quarter of the bundled model's size."""

import json
import random
import re
from itertools import islice
from pathlib import Path

import torch

from galley.demo import MODEL_DIR
from galley.formats.vocabulary import first_difference
from galley.train.trainer import Options
from recipes.assistant import train as assistant
from recipes.assistant.generator import examples
from recipes.assistant.model import DemoConfig, DemoModel, load_checkpoint, save_checkpoint
from recipes.student.train import Pieces, Recipe, go_half_way_back, renamed, run
from recipes.training import Muon


def test_it_is_a_quarter_of_the_teacher() -> None:
    sizes = [
        sum(weight.numel() for weight in model.parameters())
        for model in (DemoModel(Recipe().shape), load_checkpoint(MODEL_DIR))
    ]
    assert sizes[0] <= 0.25 * sizes[1]


def test_a_caller_gets_a_name_of_any_tokens_everywhere() -> None:
    pieces, rng = Pieces(("Wh", "Ext"), ("ory", "el")), random.Random(4)
    renamed_ones = 0
    for made in filter(lambda made: made.task == "ticket", islice(examples(8), 60)):
        name, again = json.loads(made.answer)["name"], renamed(made, pieces, rng)
        new = json.loads(again.answer)["name"]
        if name is None:
            assert again == made
            continue
        renamed_ones += 1
        assert re.fullmatch("((Wh|Ext)(ory|el){0,2} ?)+", new)
        assert len(new.split()) == len(name.split())
        contents = [message["content"] for message in again.messages]
        assert contents == [
            re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", new, message["content"])
            for message in made.messages
        ]
        assert new in contents[-1]
        assert json.loads(again.answer) == {**json.loads(made.answer), "name": new}
    assert renamed_ones > 5


def test_the_recipe_makes_one(tmp_path: Path) -> None:
    recipe = Recipe(
        shape=DemoConfig(hidden=32, intermediate=24, layers=1, head_dim=16),
        alone=assistant.Recipe(steps=3, step_tokens=300, longest=200, copy_steps=1),
        conversations=24,
        copies=8,
    )
    options = Options(steps=2, batch_tokens=256, kl_weight=0.8)
    report = run(recipe, options, tmp_path / "out", tmp_path / "work", 1)
    assert report.after.kl < report.before.kl
    assert first_difference(MODEL_DIR, tmp_path / "out") is None
    started = load_checkpoint(tmp_path / "work" / "young").state_dict()
    moved = load_checkpoint(tmp_path / "out").state_dict()
    # It continues from its own training, in small steps.
    for name, values in moved.items():
        change = (values - started[name]).norm() / started[name].norm()
        assert change < 0.2, name
        assert change > 0 or values.ndim == 1, name


def test_it_goes_half_way_back(tmp_path: Path) -> None:
    config = DemoConfig(hidden=32, intermediate=24, layers=1, head_dim=16)
    models = [DemoModel(config) for _ in range(2)]
    for model, name in zip(models, ("start", "end"), strict=True):
        save_checkpoint(model, tmp_path / name, 0, 4, 5)
    before, after = (load_checkpoint(tmp_path / name).state_dict() for name in ("start", "end"))
    go_half_way_back(tmp_path / "end", tmp_path / "start")
    for name, values in load_checkpoint(tmp_path / "end").state_dict().items():
        mean = (before[name] + after[name]) / 2
        torch.testing.assert_close(values, mean, rtol=2**-8, atol=1e-6)
    assert (before["norm.weight"] == after["norm.weight"]).all()
    assert (before["embed_tokens.weight"] != after["embed_tokens.weight"]).any()


def test_muon_is_that_of_torch() -> None:
    random = torch.Generator().manual_seed(0)
    start = torch.randn(24, 40, generator=random)
    gradients = [torch.randn(24, 40, generator=random) for _ in range(3)]
    found = []
    for kind in ("ours", "theirs"):
        matrix = torch.nn.Parameter(start.clone())
        optimizer = (
            Muon([matrix], lr=0.1)
            if kind == "ours"
            else torch.optim.Muon(
                [matrix], lr=0.1, weight_decay=0.02, adjust_lr_fn="match_rms_adamw"
            )
        )
        for gradient in gradients:
            matrix.grad = gradient.clone()
            optimizer.step()
        found.append(matrix.detach() - start)
    # torch's Muon multiplies in bfloat16.
    assert (found[0] - found[1]).norm() < 0.02 * found[1].norm()
