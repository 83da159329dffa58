"""Pictures are XML, with a box for each op and none on top of another."""

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from galley.engine.read_model import read_model
from galley.engine.stages import measure_eager, measure_stages, stage_names
from galley.graph.passes import run_passes
from galley.graph.picture import draw_svg
from galley.graph.program import Program
from galley.models.registry import build_program
from galley.settings.engine import EngineSettings
from tests.checkpoints import VARIANTS, config_of
from tests.embedding.checkpoints import VARIANTS as EMBEDDING_VARIANTS
from tests.embedding.checkpoints import make_model
from tests.native.harness import quantized

SVG = "{http://www.w3.org/2000/svg}"


def check_picture(program: Program) -> None:
    picture = ElementTree.fromstring(draw_svg(program))
    width, height = int(picture.attrib["width"]), int(picture.attrib["height"])
    boxes = [g.find(f"{SVG}rect") for g in picture.findall(f"{SVG}g")]
    corners = {(int(b.attrib["x"]), int(b.attrib["y"])) for b in boxes if b is not None}
    assert len(corners) == len(boxes) == sum(op.name != "columns" for op in program.ops)
    assert all(0 <= x < width - 250 and 0 <= y < height - 40 for x, y in corners)


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_model_can_be_drawn(variant: str) -> None:
    traced = build_program(config_of(variant))
    for program in (traced, run_passes(quantized(traced, "int8", "int8"))):
        check_picture(program)


@pytest.mark.parametrize(
    ("variant", "made"),
    [
        *((variant, {"pooling": "mean_tokens"}) for variant in EMBEDDING_VARIANTS),
        *((variant, {"pooling": "lasttoken"}) for variant in ("bert", "qwen3")),
        *((variant, {"labels": 1}) for variant in ("bert", "modernbert", "qwen3")),
    ],
)
def test_models_of_whole_texts_are_measured_and_drawn(
    variant: str, made: dict[str, Any], tmp_path: Path
) -> None:
    folder = make_model(tmp_path, variant, max_position_embeddings=50, **made)
    settings = EngineSettings(threads=1, weight_dtype="int8", weight_cache=False)
    model = read_model(settings, folder)
    stages = list(measure_stages(model, repeats=1))
    assert [stage.name for stage in stages] == stage_names(model)
    assert all(stage.seconds > 0 and stage.cost.weight_bytes > 0 for stage in stages)
    assert (measure_eager(model, repeats=1) or 0) > 0
    assert len(stages[-1].program.ops) < len(stages[0].program.ops)
    for stage in stages:
        check_picture(stage.program)
