"""``galley run``: talk to a model in the terminal, with the engine in this process."""

import contextlib
import difflib
import os
import re
import signal
import sys
from types import FrameType
from typing import TYPE_CHECKING, Final

import click

from galley.cli.options import MODEL_HELP, Command, Flags, start_logging, with_flags
from galley.errors import RequestError
from galley.formats.aliases import ALIASES, hub_id_of, looks_like_name
from galley.formats.source import BUNDLED, BUNDLED_MODELS, HUB_GGUF, HUB_ID
from galley.settings.engine import EngineSettings
from galley.types import SamplingParams

if TYPE_CHECKING:
    from galley.llm.llm import LLM

COMMANDS_HELP: Final = """\
/clear  forget the conversation
/help   show this help
/exit   leave (or /bye, or Ctrl-D)
Ctrl-C  stop the answer in progress"""

# Control characters of an answer could drive the terminal; tab and newline are text.
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\x80-\x9f]")


@click.command(
    cls=Command,
    examples=(
        "galley run",
        'galley run "What is a KV cache?"',
        "galley run model.gguf --temperature 0",
    ),
)
@with_flags(EngineSettings, sampling=True)
@click.argument("first", metavar="[MODEL]", required=False, help=MODEL_HELP)
@click.argument(
    "second", metavar="[PROMPT]", required=False, help="answer this and exit; default: chat"
)
@click.option("--system", default="", help="system message")
def run(flags: Flags, first: str | None, second: str | None, system: str) -> None:
    """Chat with a model in the terminal, or answer one PROMPT.

    With a single argument: an existing folder, a path, a hub id (org/name), a short name (llama3.2) or the
    name of a bundled model is the MODEL; a word that looks like another model's name is refused; anything
    else is the PROMPT for the bundled model. Text piped into the command is also a PROMPT.
    """
    model, prompt = _model_and_prompt(first, second)
    settings = flags.settings(model=model)
    start_logging(settings)
    params = flags.sampling()
    if prompt is None and not sys.stdin.isatty():
        prompt = sys.stdin.read()
    if prompt is not None and not prompt.strip():
        raise RequestError("the prompt is empty")
    from galley.llm.llm import LLM

    with LLM.from_settings(settings) as llm:
        chat = Chat(llm, params, system)
        if prompt is None:
            _converse(chat)
        elif not chat.answer(prompt):
            raise click.exceptions.Exit(130)


def _model_and_prompt(first: str | None, second: str | None) -> tuple[str | None, str | None]:
    if first is None or _names_model(first):
        return first, second
    if second is None and not looks_like_name(first):
        return None, first
    if looks_like_name(first):
        raise click.BadParameter(_unknown(first))
    raise click.BadParameter(
        f"{first!r} is neither a folder, a hub id (org/name), a short name nor a bundled model; "
        "quote a prompt of several words"
    )


def _unknown(name: str) -> str:
    """Return the error for a word that was most likely meant as a model."""
    begin = name.lower().partition(":")[0]
    near = difflib.get_close_matches(name.lower(), ALIASES, n=4) or [
        known for known in ALIASES if known.partition(":")[0] == begin
    ]
    meant = f" (did you mean {', '.join(near)}?)" if near else ""
    return (
        f"{name!r} looks like a model's name, but Galley knows no model of that name{meant}. Give a "
        f"folder, a GGUF file, a hub id (org/name) or a short name. As a prompt of the bundled model: "
        f"galley run {BUNDLED} {name}"
    )


def _names_model(text: str) -> bool:
    if text in BUNDLED_MODELS or hub_id_of(text) is not None:
        return True
    path_like = text.startswith(("/", "./", "../", "~"))
    # os.path, because pathlib raises for invalid paths, and any prompt can be passed here.
    at_hub = HUB_ID.fullmatch(text) or HUB_GGUF.fullmatch(text)
    is_file = text.endswith(".gguf") and os.path.isfile(text)
    return path_like or at_hub is not None or is_file or os.path.isdir(text)


class Chat:
    """A conversation with a model: its messages so far and the sampling parameters."""

    def __init__(self, llm: "LLM", params: SamplingParams, system: str) -> None:
        self._llm = llm
        self._params = params
        self._system = system
        self.clear()

    def clear(self) -> None:
        """Forget all messages except the system message."""
        self.messages = [{"role": "system", "content": self._system}] if self._system else []

    def answer(self, prompt: str) -> bool:
        """Print the answer while it is generated. Return False if Ctrl-C ended it.

        Raises:
            RequestError: the conversation does not fit the context; it is as it was before.
        """
        question = {"role": "user", "content": prompt}
        said: list[str] = []
        thought: list[str] = []
        shown = _Shown()
        with _Interrupt() as interrupt:
            # Leaving the loop drops the stream, which cancels the request in the engine.
            for delta in self._llm.chat_stream([*self.messages, question], self._params):
                said.append(delta.text)
                thought.append(delta.reasoning)
                shown.thinking(delta.reasoning)
                shown.text(delta.text)
                if interrupt.seen:
                    break
        shown.end()
        answer = {"role": "assistant", "content": "".join(said)}
        if any(thought):
            answer["reasoning_content"] = "".join(thought)
        self.messages += [question, answer]
        return not interrupt.seen


class _Interrupt:
    """Records the first Ctrl-C instead of raising, so that no engine step is interrupted.

    The second one takes effect at once.
    """

    def __init__(self) -> None:
        self.seen = False

    def __enter__(self) -> "_Interrupt":
        self._previous = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._previous)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.seen:
            raise KeyboardInterrupt
        self.seen = True


class _Shown:
    """Writes an answer to stdout: thinking is dim in a terminal, and omitted in a pipe or file."""

    def __init__(self) -> None:
        self._terminal = sys.stdout.isatty()
        plain = os.environ.get("TERM", "dumb") == "dumb" or "NO_COLOR" in os.environ
        self._marks = ("(thinking) ", "\n(answer) ") if plain else ("\x1b[2m", "\x1b[0m\n")
        self._thinks = False

    def thinking(self, text: str) -> None:
        if text and self._terminal:
            if not self._thinks:
                self._write(self._marks[0])
            self._thinks = True
            self._write(_CONTROL.sub("", text))

    def text(self, text: str) -> None:
        if text:
            self._answers()
            self._write(_CONTROL.sub("", text) if self._terminal else text)

    def end(self) -> None:
        self._answers()
        self._write("\n")

    def _answers(self) -> None:
        if self._thinks:
            self._write(self._marks[1])
        self._thinks = False

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()


def _converse(chat: Chat) -> None:
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  # line editing and the arrow keys in input()

    print("/help for help, Ctrl-D to leave")
    while True:
        try:
            line = input(">>> ").strip()
        except KeyboardInterrupt:
            print()
            continue
        except EOFError:
            print()
            return
        if line in ("/exit", "/bye"):
            return
        if line == "/clear":
            chat.clear()
        elif line == "/help":
            print(COMMANDS_HELP)
        elif line.startswith("/"):
            print(f"unknown command {line.split()[0]}; /help lists the commands")
        elif line:
            _say(chat, line)


def _say(chat: Chat, line: str) -> None:
    try:
        chat.answer(line)
    except RequestError as error:
        print(f"{error} (/clear starts over)", file=sys.stderr)
