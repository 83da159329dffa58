"""Flags of other servers: those that mean the same work, the others say what to use."""

from pathlib import Path

import click
import pytest

from galley.cli.main import app
from galley.cli.other_servers import FLAGS, Flag, markdown
from galley.cli.serve import serve
from tests.cli.command import galley

PAGE = Path(__file__).parents[2] / "docs" / "from-other-servers.md"

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
"""A value that each flag takes; numbers otherwise."""


def parsed(*arguments: str) -> dict[str, object]:
    """What ``galley serve`` makes of a command line, without serving."""
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
    assert parsed("--dtype", "half") == parsed("--dtype=float16") == parsed("--quantize", "f16")
    assert parsed("--dtype", "float") == parsed("--dtype", "float32")
    with pytest.raises(click.BadParameter, match="'int9'"):
        parsed("--dtype", "int9")


def test_the_command_line_of_the_shell_says_so() -> None:
    done = galley("serve", "galley-demo", "--gpu-memory-utilization", "0.9")
    assert done.returncode == 2
    assert "--gpu-memory-utilization is a flag of vLLM: use --kv-memory-fraction" in done.stderr


def test_the_page_has_the_table() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert markdown("vLLM") in page
    assert markdown("llama-server") in page
