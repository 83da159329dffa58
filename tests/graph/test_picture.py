"""Pictures are XML, with a box for each op and none on top of another."""

from xml.etree import ElementTree

import pytest

from galley.formats.checkpoint import Checkpoint
from galley.graph.passes import run_passes
from galley.graph.picture import draw_svg
from galley.models.registry import build_program
from tests.checkpoints import VARIANTS
from tests.conftest import CheckpointMaker
from tests.native.harness import quantized

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_model_can_be_drawn(variant: str, checkpoint: CheckpointMaker) -> None:
    traced = build_program(Checkpoint.open(checkpoint(variant)).config)
    for program in (traced, run_passes(quantized(traced, "int8", "int8"))):
        picture = ElementTree.fromstring(draw_svg(program))
        width, height = int(picture.attrib["width"]), int(picture.attrib["height"])
        boxes = [g.find(f"{SVG}rect") for g in picture.findall(f"{SVG}g")]
        corners = {(int(b.attrib["x"]), int(b.attrib["y"])) for b in boxes if b is not None}
        assert len(corners) == len(boxes) == sum(op.name != "columns" for op in program.ops)
        assert all(0 <= x < width - 250 and 0 <= y < height - 40 for x, y in corners)
