"""Files for the results of commands."""

from pathlib import Path

import pytest

from galley.cli.report import opened
from galley.errors import RequestError


def test_results_go_to_a_file_or_to_stdout(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for target in (tmp_path / "file", None):
        with opened(target) as output:
            output.write("é")
    assert (tmp_path / "file").read_bytes() == "é".encode()
    assert capsys.readouterr().out == "é"


def test_a_file_that_cannot_be_opened_is_named_with_what_to_do(tmp_path: Path) -> None:
    target = tmp_path / "missing" / "file"
    with pytest.raises(RequestError) as error, opened(target, instead="give --output-dir DIR"):
        pass
    assert str(error.value) == (
        f"cannot write {target}: No such file or directory; give --output-dir DIR"
    )
