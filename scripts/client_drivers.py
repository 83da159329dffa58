"""Drive each client through two turns of a conversation with a tool, so that both are recorded."""

import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ASKED: Final = "Read notes.txt and say who sat."
MOST_SECONDS: Final = 180


@dataclass(frozen=True)
class Place:
    """Where a client runs.

    Attributes:
        url: URL of the server it calls.
        home, project: folders reserved for it.
        binaries: folder of npm's executables.
        python: interpreter of the environment with the libraries.
    """

    url: str
    home: Path
    project: Path
    binaries: Path
    python: Path


@dataclass(frozen=True)
class Client:
    """A client that can be installed and driven.

    Attributes:
        registry: "npm" or "PyPI".
        package: its name there.
        run: runs the client's conversation.
    """

    registry: str
    package: str
    run: Callable[[Place], None]


def _claude_code(place: Place) -> None:
    command = [str(place.binaries / "claude"), "-p", ASKED, "--model", "recorded"]
    environment = {
        "ANTHROPIC_BASE_URL": place.url,
        "ANTHROPIC_API_KEY": "none",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
    }
    _run([*command, "--allowedTools", "Read"], place, environment)


def _codex(place: Place) -> None:
    folder = place.home / ".codex"
    folder.mkdir(exist_ok=True)
    (folder / "config.toml").write_text(
        'model = "recorded"\nmodel_provider = "galley"\n[model_providers.galley]\nname = "Galley"\n'
        f'base_url = "{place.url}/v1"\nenv_key = "GALLEY_KEY"\nwire_api = "responses"\n'
    )
    command = [str(place.binaries / "codex"), "exec", "--skip-git-repo-check", "-s", "read-only"]
    _run([*command, ASKED], place, {"GALLEY_KEY": "none"})


def _opencode(place: Place) -> None:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Galley",
        "options": {"baseURL": f"{place.url}/v1", "apiKey": "none"},
        "models": {"recorded": {"name": "recorded"}},
    }
    config = {
        "model": "galley/recorded",
        "autoupdate": False,
        "share": "disabled",
        "provider": {"galley": provider},
    }
    (place.project / "opencode.json").write_text(json.dumps(config))
    _run([str(place.binaries / "opencode"), "run", ASKED], place, {})


_TOOL: Final = """
from typing import Any
SCHEMA: Any = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
"""

_OPENAI: Final = (
    _TOOL
    + """
from openai import OpenAI
client = OpenAI(base_url=URL + "/v1", api_key="none")
function = {"name": "get_weather", "description": "The weather.", "parameters": SCHEMA}
tools = [{"type": "function", "function": function}]
messages = [{"role": "user", "content": "Paris?"}]
said = client.chat.completions.create(model="recorded", messages=messages, tools=tools)
messages += [said.choices[0].message, {"role": "tool", "tool_call_id": "call_1", "content": "21"}]
stream = client.chat.completions.create(
    model="recorded", messages=messages, tools=tools, stream=True, stream_options={"include_usage": True}
)
list(stream)
tools = [{"type": "function", **function, "strict": False}]
said = client.responses.create(model="recorded", input="Paris?", tools=tools)
output = {"type": "function_call_output", "call_id": "call_1", "output": "21"}
given = [{"role": "user", "content": "Paris?"}, *said.output, output]
list(client.responses.create(model="recorded", input=given, tools=tools, stream=True))
"""
)

_ANTHROPIC: Final = (
    _TOOL
    + """
from anthropic import Anthropic
client = Anthropic(base_url=URL, api_key="none")
tools = [{"name": "get_weather", "description": "The weather.", "input_schema": SCHEMA}]
messages = [{"role": "user", "content": "Paris?"}]
asked = {"model": "recorded", "max_tokens": 64, "system": "Be brief.", "tools": tools}
client.messages.count_tokens(model="recorded", messages=messages, tools=tools)
with client.messages.stream(messages=messages, thinking={"type": "adaptive"}, **asked) as stream:
    said = stream.get_final_message()
result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "21"}
messages += [{"role": "assistant", "content": said.content}, {"role": "user", "content": [result]}]
client.messages.create(messages=messages, **asked)
"""
)

_LANGCHAIN: Final = """
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

@tool
def get_weather(city: str) -> str:
    "The weather of a city."
    return "21"

openai = {"base_url": URL + "/v1", "api_key": "none", "model": "recorded"}
for chat in (
    ChatOpenAI(**openai),
    ChatOpenAI(**openai, use_responses_api=True),
    ChatAnthropic(base_url=URL, api_key="none", model="recorded", max_tokens=64),
):
    bound = chat.bind_tools([get_weather])
    asked = [SystemMessage("Be brief."), HumanMessage("Paris?")]
    said = bound.invoke(asked)
    answer = ToolMessage("21", tool_call_id=said.tool_calls[0]["id"])
    list(bound.stream([*asked, said, answer]))
"""

_LITELLM: Final = (
    _TOOL
    + """
import litellm
litellm.telemetry = False
function = {"name": "get_weather", "description": "The weather.", "parameters": SCHEMA}
tools = [{"type": "function", "function": function}]
for provider, path in (("openai", "/v1"), ("anthropic", ""), ("ollama_chat", "")):
    asked = {"model": provider + "/recorded", "api_base": URL + path, "api_key": "none", "tools": tools}
    messages = [{"role": "user", "content": "Paris?"}]
    said = litellm.completion(messages=messages, **asked).choices[0].message
    answer = {"role": "tool", "tool_call_id": said.tool_calls[0].id, "content": "21"}
    litellm.completion(messages=[*messages, said, answer], **asked)
"""
)


def _program(source: str) -> Callable[[Place], None]:
    def run(place: Place) -> None:
        offline = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LANGSMITH_TRACING": "false"}
        code = f"URL = {place.url!r}\n{source}"
        _run([str(place.python), "-c", code], place, offline)

    return run


def _run(command: list[str], place: Place, environment: dict[str, str]) -> None:
    """Run a command; raise CalledProcessError, with the client's output, if it fails."""
    subprocess.run(
        command,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(place.home),
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            "NO_COLOR": "1",
            **environment,
        },
        cwd=place.project,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=MOST_SECONDS,
        check=True,
    )


CLIENTS: Final = {
    "claude-code": Client("npm", "@anthropic-ai/claude-code", _claude_code),
    "codex": Client("npm", "@openai/codex", _codex),
    "opencode": Client("npm", "opencode-ai", _opencode),
    "openai": Client("PyPI", "openai", _program(_OPENAI)),
    "anthropic": Client("PyPI", "anthropic", _program(_ANTHROPIC)),
    "langchain": Client("PyPI", "langchain-openai", _program(_LANGCHAIN)),
    "litellm": Client("PyPI", "litellm", _program(_LITELLM)),
}
"""Name -> client; a recording has its client's name."""

LIBRARIES: Final = ("openai", "anthropic", "langchain-openai", "langchain-anthropic", "litellm")
"""Libraries from PyPI, which are installed together."""
