"""Names in the API of models to which the settings give none."""

from pathlib import Path

import pytest

from galley.gateway.default_name import default_name


@pytest.mark.parametrize(
    "model", ["org/name", "m" * 5000, "m" * 5000 + ".gguf", "a\0b", "~nobody/x"]
)
def test_what_is_no_path_is_its_own_name(model: str) -> None:
    """A path can be too long, or contain what none can: that is reported when the model is read."""
    assert default_name(model) == model


def test_folders_and_files_have_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "assistant").mkdir()
    (tmp_path / "small.gguf").write_bytes(b"GGUF")
    assert default_name(str(tmp_path / "assistant")) == "assistant"
    assert default_name(str(tmp_path / "small.gguf")) == "small"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_name("~/assistant") == "assistant"
    monkeypatch.chdir(tmp_path / "assistant")
    assert default_name(".") == "assistant"
