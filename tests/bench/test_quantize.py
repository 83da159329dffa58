"""Texts of the quantization benchmark: measured texts are not used for calibration."""

import json
from pathlib import Path

import pytest
from benchmarks.quantize import Source, texts_of

from galley import LLM, SettingsError

MODEL = "galley-demo"


def lines(path: Path, numbers: range) -> Path:
    path.write_text("\n".join(json.dumps({"text": f"Ticket {i}: the printer."}) for i in numbers))
    return path


@pytest.mark.parametrize("apart", [False, True])
def test_files_are_cut_into_full_windows_and_none_is_in_both(tmp_path: Path, apart: bool) -> None:
    data = lines(tmp_path / "data.jsonl", range(300))
    other = lines(tmp_path / "other.jsonl", range(300, 600)) if apart else data
    found = texts_of(MODEL, Source(other, data, context=32, tokens=640, measured=96))
    assert [len(window) for window in found.measured] == [32] * 3
    assert {len(window) for window in found.calibration} == {32}
    assert len(found.calibration) == 20
    assert not {*map(tuple, found.measured)} & {*map(tuple, found.calibration)}
    with LLM(MODEL) as llm:
        assert llm.tokenizer.decode(found.measured[0]).startswith("Ticket 0: the printer.Ticket 1")


def test_a_file_that_is_used_up_by_measuring_is_refused(tmp_path: Path) -> None:
    data = lines(tmp_path / "data.jsonl", range(6))
    with pytest.raises(SettingsError, match="give more text"):
        texts_of(MODEL, Source(data, data, context=16, tokens=64, measured=4096))
