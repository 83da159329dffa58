"""galley graph on the bundled model, as a process."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from galley.graph.passes import PASSES
from tests.checkpoints import make_whisper

from .command import galley

SVG = "{http://www.w3.org/2000/svg}"


def table(output: str) -> dict[str, list[str]]:
    """Return first column -> the others."""
    rows = [line.split("  ") for line in output.splitlines() if line.strip()]
    cells = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    return {row[0]: row[1:] for row in cells}


def test_the_table_has_a_row_for_each_pass_and_the_files_a_picture(tmp_path: Path) -> None:
    html, svg = tmp_path / "graph.html", tmp_path / "graph.svg"
    done = galley(
        *("graph", "--weight-dtype", "int4", "--threads", "1", "--repeats", "1"),
        *("--html", html, "--svg", svg),
    )
    assert done.returncode == 0, done.stderr
    rows = table(done.stdout)
    assert [name for name in rows if name in PASSES] == list(PASSES)
    before, after = rows["(as traced)"], rows["drop-dead"]
    assert int(after[0]) < int(before[0]), "ops"
    assert float(after[1]) == pytest.approx(float(before[1]), rel=0.01), "the same weights"
    assert float(after[2]) < float(before[2]), "bytes of buffers"
    assert all(float(row[4]) > 0 for name, row in rows.items() if name in PASSES)
    assert int(rows["(reference)"][0]) < int(before[0]), "the traced program shows no rounding"

    picture = ElementTree.parse(svg).getroot()
    assert len(picture.findall(f"{SVG}g")) == int(after[0])
    page = html.read_text(encoding="utf-8")
    assert svg.read_text(encoding="utf-8") in page
    assert all(name in page for name in PASSES)


def test_passes_that_are_left_out_have_no_row() -> None:
    done = galley(
        *("graph", "--threads", "1", "--repeats", "1", "--kv-dtype", "int8"),
        *("--disable-pass", "merge-linears", "--disable-pass", "fuse-add-norm"),
    )
    assert done.returncode == 0, done.stderr
    rows = table(done.stdout)
    assert set(PASSES) - set(rows) == {"merge-linears", "fuse-add-norm"}


def test_activations_that_stay_floats_are_prepared_for_no_layer() -> None:
    done = galley(
        *("graph", "--threads", "1", "--repeats", "1"),
        *("--weight-dtype", "int4", "--activations", "float32"),
    )
    assert done.returncode == 0, done.stderr
    rows = table(done.stdout)
    assert rows["(reference)"][0] == rows["(as traced)"][0]


def test_a_speech_model_shows_its_decoder(tmp_path: Path) -> None:
    done = galley("graph", make_whisper(tmp_path), "--threads", "1", "--repeats", "1")
    assert done.returncode == 0, done.stderr
    assert float(table(done.stdout)["fuse-gelu-quantize"][4]) > 0


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--disable-pass", "melt"], "unknown pass 'melt'; passes: hoist-select-rows"),
        (["--svg", "nowhere/graph.svg"], "nowhere does not exist"),
        (["--max-running", "3"], "No such option"),
        (
            ["--weight-dtype", "bf16", "--activations", "int8"],
            "activations is 'int8', but executor",
        ),
        (["--activations", "int3"], "'int3' is not one of"),
    ],
)
def test_what_cannot_be_done_is_reported_before_any_work(args: list[str], message: str) -> None:
    done = galley("graph", *args)
    assert done.returncode == 2
    assert message in done.stderr
