"""Several models by name: on the command line, in a variable, in YAML."""

from pathlib import Path
from typing import Any

import pytest

from galley.cli.options import Flags
from galley.errors import SettingsError
from galley.settings.config import Settings
from galley.settings.named_models import named_models

from .command import galley


@pytest.fixture(autouse=True)
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GALLEY_THREADS")


def load(text: str, tmp_path: Path, *models: str, **given: Any) -> Settings:
    """Parse ``text`` as the settings file, ``models`` as arguments and ``given`` as flags."""
    file = tmp_path / "settings.yaml"
    file.write_text(text, encoding="utf-8")
    return Flags(given, file).settings_of(models)


def summary(settings: Settings) -> dict[str, tuple[str, str]]:
    return {
        model.served_model_name: (model.model, model.weight_dtype)
        for model in settings.each_model()
    }


PAIR = {"chat": ("org/a", "int4"), "speech": ("./b=c", "auto")}


def test_a_pair_says_the_same_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["chat=org/a", "chat.quantize=int4", "speech=./b=c"]
    assert summary(load("", tmp_path, *arguments)) == PAIR
    yaml = "models: {chat: {model: org/a, quantize: int4}, speech: ./b=c}"
    assert summary(load(yaml, tmp_path)) == PAIR
    monkeypatch.setenv("GALLEY_MODELS", " ".join(arguments))
    assert summary(load("models: {other: x/y}", tmp_path)) == PAIR
    assert summary(load("", tmp_path, "one=x/y")) == {"one": ("x/y", "auto")}


def test_one_model_is_what_it_was(tmp_path: Path) -> None:
    assert load("", tmp_path, "org/a").each_model() == [Settings(model="org/a")]
    assert load("", tmp_path).each_model() == [Settings()]
    # The argument overrides the file entirely; other commands take one model.
    file = "models: {chat: org/b}"
    assert summary(load(file, tmp_path, "org/a")) == {"": ("org/a", "auto")}
    assert Flags({}, tmp_path / "settings.yaml").settings().each_model() == [Settings()]


def test_settings_hold_for_all_models_but_those_with_their_own(tmp_path: Path) -> None:
    file = (
        "threads: 3\nmodels: {a: {max-running: 2}, b: {threads: 1, kv_memory_fraction: 0.4}, c: }"
    )
    a, b, c = load(file, tmp_path, weight_dtype="int8", model="org/shared").each_model()
    assert [m.threads for m in (a, b, c)] == [3, 1, 3]
    assert [m.max_running for m in (a, b, c)] == [2, None, None]
    assert [m.weight_dtype for m in (a, b, c)] == ["int8"] * 3
    assert [m.model for m in (a, b, c)] == ["org/shared", "org/shared", ""]
    # Memory is shared by all.
    assert [m.kv_memory_fraction for m in (a, b, c)] == [0.5 / 3, 0.4, 0.5 / 3]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["chat=a/b", "c/d"], r"'c/d' has no name: .* like chat=c/d"),
        (["a/b", "c/d"], r"'a/b' has no name"),
        (["chat=a/b", "chat=c/d"], r"two models have the name 'chat'"),
        (["=a/b"], r"'' is not a name for a model"),
        (["./runs=3/model"], r"'./runs' is not a name for a model"),
        (["my model=a/b"], r"'my model' is not a name"),
        (["chat="], r"the model of chat is empty; .*galley-demo"),
        (["chat=a/b", "chat.model="], r"the model of chat is empty"),
        (
            ["chat=a/b", "chat.quant=int4"],
            r"chat: unknown setting 'quant'; known: .*weight_dtype",
        ),
        (["chat=a/b", "chat.port=1"], r"unknown setting 'port'"),
        (["chat=a/b", "chat.quantize=int3"], r"chat: quantize: 'int3' is not one of"),
        (["chat=a/b", "chat.threads=0"], r"models: chat: threads must be at least 1"),
    ],
)
def test_what_is_no_pair_is_refused(arguments: list[str], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        Settings(models=named_models(arguments))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("models: [a, b]", "models must map names to models"),
        ("models: {chat: 3}", "models: chat: expected a model or a mapping of settings, got 3"),
        ("models: {chat: {modle: x}}", "models: chat: unknown setting 'modle'"),
        ("models: {'a b': x}", "'a b' is not a name"),
        ("models: {chat: ''}", "the model of chat is empty"),
        ("models: {chat: {model: ''}}", "the model of chat is empty"),
        ("models: {chat: x}\nserved_model_name: y", "served_model_name is 'y', but .* chat"),
    ],
)
def test_wrong_files_are_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        load(text, tmp_path)


def test_an_empty_argument_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="MODEL is empty"):
        load("", tmp_path, "")
    done = galley("serve", "")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("galley: the argument MODEL is empty")


def test_the_command_line_says_what_is_wrong_in_one_line() -> None:
    done = galley("serve", "chat=a/b", "chat=c/d")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "galley: two models have the name 'chat'\n"
