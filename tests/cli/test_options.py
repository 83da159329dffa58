"""Flags generated from declarations, and the command line as a process: exit codes, errors, start-up."""

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from hypothesis import given

from galley.cli.main import app
from galley.cli.options import SAMPLING_HELP, Command
from galley.settings.config import Settings
from galley.settings.engine import EngineSettings
from galley.settings.fields import setting_types
from galley.types import SamplingParams

from .any_settings import SOME_SETTINGS
from .command import galley
from .parsing import parse

HEAVY = ("torch", "numpy", "starlette", "tokenizers", "huggingface_hub", "yaml", "jinja2", "rich")


def as_flags(name: str, value: object) -> list[str]:
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{flag}" if value else f"--no-{flag}"]
    values = value if isinstance(value, tuple) else (value,)
    return [f"--{flag}={item}" for item in values]


@given(values=SOME_SETTINGS)
def test_flags_round_trip(values: dict[str, Any]) -> None:
    values = {name: value for name, value in values.items() if value is not None and value != ()}
    args = [arg for name, value in values.items() for arg in as_flags(name, value)]
    flags = parse(args, model=True)
    assert flags.given == values


@pytest.mark.parametrize(
    "command",
    ["serve", "run", "plan", "quantize", "transcribe", "eval quality", "bench serve"],
)
def test_examples_of_the_help_are_command_lines_that_parse(command: str) -> None:
    found: click.Command = app
    for name in command.split():
        assert isinstance(found, click.Group)
        command_named = found.get_command(click.Context(found), name)
        assert command_named
        found = command_named
    assert isinstance(found, Command)
    assert found.examples
    shown = " ".join(CliRunner().invoke(app, [*command.split(), "--help"]).output.split())
    for line in found.examples:
        assert " ".join(line.split()) in shown
        words = shlex.split(line)
        assert words[: 1 + len(command.split())] == ["galley", *command.split()]
        found.make_context(command, words[1 + len(command.split()) :], parent=click.Context(app))


def test_only_what_was_given_overrides_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GALLEY_PORT", "1234")
    monkeypatch.setenv("GALLEY_MAX_RUNNING", "5")
    settings = parse(["--max-running", "64"]).settings()  # the default, stated explicitly
    assert settings.port == 1234
    assert settings.max_running == 64


def test_the_positional_model_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GALLEY_MODEL", "from-environment")
    flags = parse([])
    assert flags.settings().model == "from-environment"
    assert flags.settings(model="given").model == "given"


def test_config_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("port: 77", encoding="utf-8")
    assert parse(["--config", str(tmp_path / "a.yaml")]).settings().port == 77


def test_commands_without_a_server_have_no_server_flags() -> None:
    parse(["--port", "1"], kind=EngineSettings, exit_code=2)
    flags = parse(["--log-level", "debug"], kind=EngineSettings)
    assert flags.settings().log_level == "debug"


def test_sampling_flags() -> None:
    args = ["--temperature", "0.5", "--top-k=7", "--seed", "3", "--stop", "a", "--stop", "b"]
    params = parse([*args, "--max-tokens=9"], sampling=True).sampling()
    assert params == SamplingParams(temperature=0.5, top_k=7, seed=3, stop=("a", "b"), max_tokens=9)
    assert parse([], sampling=True).sampling() == SamplingParams()


def test_sampling_flags_are_sampling_parameters() -> None:
    assert SAMPLING_HELP.keys() <= set(SamplingParams.__struct_fields__)
    assert not SAMPLING_HELP.keys() & setting_types(Settings).keys()


@pytest.mark.parametrize(
    "args", [["--port", "eight"], ["--dtype", "int3"], ["--no-such"], ["--threads"]]
)
def test_malformed_flags_are_usage_errors(args: list[str]) -> None:
    parse(args, exit_code=2)


def test_help_all_groups_every_setting() -> None:
    done = galley("serve", "--help-all")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    for name in setting_types(Settings).keys() - {"model", "models"}:
        assert any(f"--{name.replace('_', '-')} " in line for line in lines), name
    for group in ("Model", "Engine", "Server", "Security", "Limits"):
        assert f"{group}:" in lines, group
    assert "more settings" not in done.stdout


def flags_in(help_text: str) -> set[str]:
    """Return the names of the settings that a help text lists."""
    words = {line.split()[0] for line in help_text.splitlines() if line.strip().startswith("--")}
    names = {word.rstrip(",").removeprefix("--").replace("-", "_") for word in words}
    return names & setting_types(Settings).keys()


@pytest.mark.parametrize("command", ["serve", "run", "transcribe", "embed", "batch", "eval demo"])
def test_help_lists_the_common_settings_and_counts_the_others(command: str) -> None:
    words = command.split()
    short = CliRunner().invoke(app, [*words, "--help"], prog_name="galley").output
    whole = CliRunner().invoke(app, [*words, "--help-all"], prog_name="galley").output
    listed, known = flags_in(short), flags_in(whole)
    assert {"weight_dtype", "threads", "max_running", "log_level"} <= listed
    assert len(listed) <= 16
    rest = len(known - listed)
    assert rest > 20
    assert f"{rest} more settings: galley {command} --help-all" in " ".join(short.split())


def test_help_lists_all_settings_that_a_command_chooses() -> None:
    shown = CliRunner().invoke(app, ["ps", "--help"]).output
    assert flags_in(shown) == {"host", "port", "api_key"}
    assert "--help-all" not in shown


@pytest.mark.parametrize(("name", "value"), [("step_timeout", 5.0), ("kv_events", "tcp://*:5557")])
def test_settings_that_help_leaves_out_are_accepted(name: str, value: object) -> None:
    assert name not in flags_in(CliRunner().invoke(app, ["serve", "--help"]).output)
    assert parse(as_flags(name, value)).given == {name: value}


def test_version() -> None:
    from galley import __version__

    assert galley("--version").stdout == f"galley {__version__}\n"


@pytest.mark.parametrize("command", [(), ("serve",), ("run",), ("batch",), ("eval", "demo")])
def test_help_imports_nothing_heavy(command: tuple[str, ...]) -> None:
    code = (
        "import sys\n"
        "from galley.cli.main import app\n"
        f"app([*{command!r}, '--help'], standalone_mode=False)\n"
        f"print('imported:', sorted(set(sys.modules) & set({HEAVY!r})))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.splitlines()[-1] == "imported: []"


def test_a_command_imports_no_other() -> None:
    code = (
        "import sys\n"
        "from galley.cli.main import app\n"
        "app(['keygen', '--help'], standalone_mode=False)\n"
        "print(*(name for name in app.list_commands(None) if f'galley.cli.{name}' in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.splitlines()[-1] == "keygen"


def test_commands_are_listed_under_their_names() -> None:
    context = click.Context(app)
    named = {name: app.get_command(context, name) for name in app.list_commands(context)}
    assert {name: command.name for name, command in named.items() if command} == {
        name: name for name in named
    }


def test_wrong_settings_are_one_line_and_exit_code_2(tmp_path: Path) -> None:
    (tmp_path / "galley.yaml").write_text("prot: 1", encoding="utf-8")
    done = galley("serve", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("galley: galley.yaml: unknown setting 'prot'")
    assert done.stderr.count("\n") == 1


def test_a_missing_model_is_one_line_and_exit_code_1(tmp_path: Path) -> None:
    done = galley("run", str(tmp_path / "nowhere"), "hello")
    assert done.returncode == 1
    assert done.stderr.startswith("galley: ")
    assert "nowhere" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_name_longer_than_a_path_is_one_line() -> None:
    done = galley("serve", "m" * 5000 + ".gguf", "--port", "0")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("galley: ")
    assert "Traceback" not in done.stderr


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = galley("quantize", "galley-demo", str(tmp_path / "file" / "out"))
    assert done.returncode == 1
    assert done.stderr == f"galley: {tmp_path}/file/out: Not a directory\n"


def test_a_full_disk_is_one_line() -> None:
    with open("/dev/full", "wb") as full:
        command = [sys.executable, "-m", "galley", "ps", "--help"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "galley: No space left on device\n"


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    done = galley("run", str(tmp_path / "nowhere"), "hello", "--log-level", "debug")
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("galley: ")


def test_summaries_of_commands_are_whole() -> None:
    narrow = {"COLUMNS": "80"}
    for group in ((), ("eval",), ("bench",), ("cache",)):
        done = galley(*group, "--help", environ=narrow)
        summaries = done.stdout.partition("Commands:")[2]
        assert summaries
        assert "..." not in summaries
        assert "…" not in summaries
    shown = " ".join(galley("--help", environ=narrow).stdout.split())
    assert "with their costs and remedies." in shown  # the end of a long one


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shell_completion_is_offered_and_documented(shell: str) -> None:
    script = galley(environ={"_GALLEY_COMPLETE": f"{shell}_source"})
    assert "_GALLEY_COMPLETE" in script.stdout
    words = {"COMP_WORDS": "galley tra", "COMP_CWORD": "tra" if shell == "fish" else "1"}
    found = galley(environ={"_GALLEY_COMPLETE": f"{shell}_complete", **words})
    assert "transcribe" in found.stdout
    assert "keygen" not in found.stdout
    help_text = galley("--help").stdout
    assert f"{shell}_source" in help_text
