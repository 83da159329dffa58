"""The recipe of a student of a quarter of the bundled model's size."""

from pathlib import Path

import torch

from galley.demo import MODEL_DIR
from galley.engine.read_model import read_model
from galley.engine_settings import EngineSettings
from galley.formats.vocabulary import first_difference
from galley.train.forward import logits_of
from galley.train.student import read_parameters
from galley.train.trainer import Options
from recipes.student.train import Recipe, Shape, new_student, run
from recipes.training import Muon


def test_it_is_a_quarter_and_begins_as_a_part_of_the_teacher(tmp_path: Path) -> None:
    teacher = read_model(EngineSettings(dtype="float32"), MODEL_DIR)
    student = new_student(Shape(), teacher, tmp_path, seed=0)
    sizes = [sum(w.numel() for w in student.parameters.values())]
    sizes.append(sum(torch.Size(shape).numel() for shape in teacher.program.shapes.values()))
    assert sizes[0] <= 0.25 * sizes[1]
    ids, wanted = torch.arange(6, 66).view(2, 30) * 7, torch.ones(2, 30, dtype=torch.bool)
    own = read_parameters(teacher)[0]
    truth = logits_of(teacher.program, own, ids, wanted).argmax(-1)
    # Through all of its columns it is the teacher, but for its last norm, which has one weight for all.
    for shape, least in ((Shape(256, 768), 0.5), (Shape(192, 600), 0.05)):
        seen = new_student(shape, teacher, tmp_path, seed=0)
        said = logits_of(seen.program, seen.weights(), ids, wanted).argmax(-1)
        assert (said == truth).float().mean() > least


def test_the_recipe_makes_one(tmp_path: Path) -> None:
    recipe = Recipe(conversations=24, copies=8)
    options = Options(steps=2, batch_tokens=256, kl_weight=0.8)
    shape = Shape(hidden_size=32, intermediate_size=24)
    report = run(recipe, shape, options, tmp_path / "out", tmp_path / "work", 1)
    assert report.after.kl < report.before.kl
    assert first_difference(MODEL_DIR, tmp_path / "out") is None


def test_muon_is_that_of_torch() -> None:
    random = torch.Generator().manual_seed(0)
    start = torch.randn(24, 40, generator=random)
    gradients = [torch.randn(24, 40, generator=random) for _ in range(3)]
    found = []
    for kind in ("ours", "theirs"):
        matrix = torch.nn.Parameter(start.clone())
        optimiser = (
            Muon([matrix], lr=0.1)
            if kind == "ours"
            else torch.optim.Muon(
                [matrix], lr=0.1, weight_decay=0.02, adjust_lr_fn="match_rms_adamw"
            )
        )
        for gradient in gradients:
            matrix.grad = gradient.clone()
            optimiser.step()
        found.append(matrix.detach() - start)
    # That one multiplies in bfloat16.
    assert (found[0] - found[1]).norm() < 0.02 * found[1].norm()
