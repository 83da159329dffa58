"""Flags of other servers: equivalent ones work, the others name what to use instead."""

import dataclasses
import inspect
import shlex
from pathlib import Path
from typing import Any

import click
import pytest
from faster_whisper import WhisperModel
from faster_whisper.vad import VadOptions

import galley as galley_package
from galley.cli.main import app
from galley.cli.other_servers import FLAGS, Flag, markdown
from galley.cli.serve import serve
from galley.cli.speech_options import speech_options, transcribe_options
from galley.settings.engine import EngineSettings
from tests.cli.command import galley, parsed_command
from tests.pages import rows

DOCS = Path(__file__).parents[2] / "docs"
COMMANDS = DOCS / "from-other-servers.md"
VLLM = DOCS / "how-to/from-vllm.md"
OLLAMA = DOCS / "how-to/from-ollama.md"
FASTER_WHISPER = DOCS / "how-to/from-faster-whisper.md"

VALUES = {
    "--kv-dtype": "int8",
    "--tool-parser": "hermes",
    "--reasoning-parser": "think",
    "--adapter": "name=folder",
    "--cors-origin": "https://app.example.com",
    "--log-level": "info",
    "--otlp-endpoint": "http://localhost:4318",
    "--served-model-name": "name",
    "--draft-model": "galley-demo-draft",
    "--tls-cert": "cert.pem",
    "--tls-key": "key.pem",
}
"""A valid value of each flag; numbers otherwise."""


def parsed(*arguments: str) -> dict[str, object]:
    """Parse a ``galley serve`` command line, without serving."""
    return serve.make_context("serve", list(arguments), parent=click.Context(app)).params


ACCEPTED = [(flag, name) for flag in FLAGS if flag.accepted for name in flag.names]
REFUSED = [(flag, name) for flag in FLAGS if not flag.accepted for name in flag.names]


@pytest.mark.parametrize(("flag", "name"), ACCEPTED, ids=[name for _, name in ACCEPTED])
def test_a_flag_that_means_the_same_is_galleys(flag: Flag, name: str) -> None:
    plain = parsed()
    if flag.positional:
        assert parsed(name, "org/model")["models"] == ("org/model",)
        return
    if not flag.takes_value:
        ours = (flag.becomes,) if flag.becomes else ()
        assert parsed(name) == parsed(*ours)
        return
    value = VALUES.get(flag.becomes, "7")
    got = parsed(name, value)
    assert got == parsed(f"{name}={value}") == parsed(flag.becomes, value)
    assert got != plain or flag.becomes == "--log-level"
    for there, here in flag.values.items():
        assert parsed(name, there) == parsed(f"{name}={there}") == parsed(flag.becomes, here)


@pytest.mark.parametrize(("flag", "name"), REFUSED, ids=[name for _, name in REFUSED])
def test_a_flag_without_a_counterpart_says_what_to_use(flag: Flag, name: str) -> None:
    with pytest.raises(click.UsageError) as refused:
        parsed("galley-demo", name, "1")
    assert refused.value.message == f"{name} is a flag of {flag.server}: {flag.note}"


def test_types_of_other_names_are_taken() -> None:
    assert parsed("--dtype", "half") == parsed("--dtype=float16") == parsed("--weight-dtype", "f16")
    assert parsed("--dtype", "float") == parsed("--dtype", "float32")
    with pytest.raises(click.BadParameter, match="'int9'"):
        parsed("--dtype", "int9")


def test_the_command_line_of_the_shell_says_so() -> None:
    done = galley("serve", "galley-demo", "--gpu-memory-utilization", "0.9")
    assert done.returncode == 2
    assert "--gpu-memory-utilization is a flag of vLLM: use --kv-memory-fraction" in done.stderr


def test_the_pages_have_the_tables() -> None:
    assert markdown("vLLM") in VLLM.read_text(encoding="utf-8")
    assert markdown("llama-server") in OLLAMA.read_text(encoding="utf-8")


SIDE_BY_SIDE = rows(COMMANDS, "Commands side by side")


@pytest.mark.parametrize(("there", "here"), SIDE_BY_SIDE, ids=[row[0] for row in SIDE_BY_SIDE])
def test_a_command_of_the_table_is_one_of_galleys(there: str, here: str) -> None:
    made = parsed_command(here)
    if there.startswith(("vllm serve ", "llama-server ")):
        _, _, flags = there.partition("serve " if there.startswith("vllm") else "llama-server ")
        assert serve_with(flags) == made


OLLAMAS = rows(OLLAMA, "Environment variables") + rows(OLLAMA, "Modelfiles")


@pytest.mark.parametrize(("there", "here", "note"), OLLAMAS, ids=[row[0] for row in OLLAMAS])
def test_what_ollama_reads_has_a_flag(there: str, here: str, note: str) -> None:
    if here.startswith("galley "):
        parsed_command(here)
        return
    given = serve_with(here)
    plain = parsed()
    assert {name for name in plain if given[name] != plain[name]}
    names = [word for word in shlex.split(here) if word.startswith("--")]
    assert all(
        given[name[2:].replace("-", "_")] != plain[name[2:].replace("-", "_")] for name in names
    )


MODEL = rows(FASTER_WHISPER, "The model")
OPTIONS = rows(FASTER_WHISPER, "A transcription")
SPEECH_FLAGS = [
    param.name or "" for param in click.command()(speech_options(lambda **_: None)).params
]


@pytest.mark.parametrize(("there", "here", "flag"), MODEL, ids=[row[0] for row in MODEL])
def test_a_faster_whisper_model_has_a_counterpart(there: str, here: str, flag: str) -> None:
    inspect.signature(WhisperModel.__init__).bind(None, "tiny", **keywords(there))
    settings = EngineSettings(**keywords(here))
    [(name, value)] = keywords(here).items()
    assert getattr(settings, name) == value
    assert transcribe_with(flag)[name] == value


@pytest.mark.parametrize(("there", "here", "flag"), OPTIONS, ids=[row[0] for row in OPTIONS])
def test_a_faster_whisper_option_has_a_counterpart(there: str, here: str, flag: str) -> None:
    given = keywords(there)
    inspect.signature(WhisperModel.transcribe).bind(None, "call.wav", **given)
    if "vad_parameters" in given:
        VadOptions(**given["vad_parameters"])
    options = galley_package.TranscribeOptions(**keywords(here))
    if flag:
        params = transcribe_with(flag)
        made = transcribe_options(**{name: params[name] for name in SPEECH_FLAGS})
        if params["word_timestamps"]:
            made = dataclasses.replace(made, word_timestamps=True)
        assert made == options


def test_defaults_that_differ_from_faster_whispers_are_those_that_the_page_names() -> None:
    theirs = inspect.signature(WhisperModel.transcribe).parameters
    ours = galley_package.TranscribeOptions()
    assert theirs["vad_filter"].default is False
    assert ours.speech is not None
    assert theirs["condition_on_previous_text"].default is True
    assert not ours.rules.condition_on_previous_text
    for name in ("beam_size", "best_of", "compression_ratio_threshold", "log_prob_threshold"):
        assert theirs[name].default == getattr(ours.rules, name)
    assert theirs["no_speech_threshold"].default == ours.rules.no_speech_threshold
    assert tuple(theirs["temperature"].default) == ours.rules.temperatures


def keywords(code: str) -> dict[str, Any]:
    """Return the keyword arguments in a cell of a table."""
    made = eval(f"dict({code})", {"galley": galley_package})  # our own page
    assert made
    return dict(made)


def serve_with(flags: str) -> dict[str, Any]:
    return parsed_command(f"galley serve {flags}")


def transcribe_with(flags: str) -> dict[str, Any]:
    return parsed_command(f"galley transcribe call.wav {flags}")
