"""``weight_dtype`` under its old name and in other spellings, wherever a setting is allowed."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from galley import LLM
from galley.cli.main import app
from galley.errors import SettingsError
from galley.settings.config import Settings
from galley.settings.engine import EngineSettings
from galley.settings.fields import by_field
from galley.settings.named_models import named_models
from galley.types.weight_dtypes import RUNNABLE, SPELLINGS

from .parsing import parse

NAMES = ("weight_dtype", "quantize")
VALUES = [*((name, name) for name in ("auto", *RUNNABLE)), *SPELLINGS.items()]


def load(tmp_path: Path, text: str = "", **environ: str) -> Settings:
    path = tmp_path / "settings.yaml"
    path.write_text(text, encoding="utf-8")
    return Settings.load({}, file=path, environ=environ)


@pytest.mark.parametrize(("written", "means"), VALUES)
@pytest.mark.parametrize("name", NAMES)
def test_each_name_and_spelling_means_the_same_in_each_place(
    name: str, written: str, means: str, tmp_path: Path
) -> None:
    flag = f"--{name.replace('_', '-')}"
    assert parse([flag, written]).settings().weight_dtype == means
    assert parse([f"{flag}={written}"], kind=EngineSettings).settings().weight_dtype == means
    assert load(tmp_path, f"{name}: {written}").weight_dtype == means
    assert load(tmp_path, f"{name.replace('_', '-')}: {written}").weight_dtype == means
    assert load(tmp_path, **{f"GALLEY_{name.upper()}": written}).weight_dtype == means
    models = named_models(["chat=org/a", f"chat.{name}={written}"])
    assert [m.weight_dtype for m in Settings(models=models).each_model()] == [means]
    [own] = load(tmp_path, f"models: {{chat: {{model: a, {name}: {written}}}}}").each_model()
    assert own.weight_dtype == means
    given: dict[str, Any] = by_field(EngineSettings, {name: written}, source="here")
    assert EngineSettings(**given).weight_dtype == means


@pytest.mark.parametrize("setting", ["dtype", "kv_dtype", "activations"])
@pytest.mark.parametrize(("written", "means"), [("bf16", "bfloat16"), ("f32", "float32")])
def test_other_types_are_spelled_either_way(
    setting: str, written: str, means: str, tmp_path: Path
) -> None:
    flag = f"--{setting.replace('_', '-')}"
    changed: dict[str, Any] = {setting: written}
    assert getattr(parse([flag, written]).settings(), setting) == means
    assert getattr(load(tmp_path, f"{setting}: {written}"), setting) == means
    assert getattr(dataclasses.replace(Settings(), **changed), setting) == means


def test_a_source_that_gives_both_names_is_refused(tmp_path: Path) -> None:
    both = r"quantize and weight_dtype are the same setting|weight_dtype and quantize are the same setting"
    with pytest.raises(SettingsError, match=both):
        load(tmp_path, "weight_dtype: int8\nquantize: int4")
    with pytest.raises(SettingsError, match=both):
        load(tmp_path, GALLEY_QUANTIZE="int8", GALLEY_WEIGHT_DTYPE="int4")
    with pytest.raises(SettingsError, match=both):
        named_models(["a=b", "a.quantize=int8", "a.weight_dtype=int8"])
    with pytest.raises(SettingsError, match=both):
        LLM("nowhere", weight_dtype="int8", quantize="int4")


def test_a_flag_wins_over_a_file_by_either_name(tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text("quantize: int4", encoding="utf-8")
    assert parse(["--config", str(path)]).settings().weight_dtype == "int4"
    assert (
        parse(["--config", str(path), "--weight-dtype", "int8"]).settings().weight_dtype == "int8"
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_model_in_this_process_takes_either_name(name: str) -> None:
    arguments: dict[str, Any] = {name: "bfloat16"}
    with LLM(**arguments, kv_cache_tokens=1024, executor="cpu") as llm:
        assert llm.info.require_program().weight_dtype == "bf16"
    invalid: dict[str, Any] = {name: "int3"}
    with pytest.raises(SettingsError, match="weight_dtype: 'int3' is not one of auto, float32, bf"):
        LLM(**invalid)
    with pytest.raises(SettingsError, match=r"galley\.LLM: unknown setting 'quant'"):
        LLM(quant="int4")


@pytest.mark.parametrize("flag", ["--weight-dtype", "--precision"])
def test_a_plan_takes_either_name_and_spelling(flag: str) -> None:
    arguments = ["plan", "galley-demo", "--machine", "L4"]
    plain = CliRunner().invoke(app, [*arguments, flag, "bf16"])
    assert plain.exit_code == 0, plain.output
    assert CliRunner().invoke(app, [*arguments, flag, "bfloat16"]).output == plain.output


@pytest.mark.parametrize(
    "command", [("serve",), ("run",), ("plan",), ("qat",), ("eval", "quality")]
)
def test_help_names_it_by_the_new_name_first(command: tuple[str, ...]) -> None:
    said = CliRunner().invoke(app, [*command, "--help"]).output
    assert "--weight-dtype, --" in said
