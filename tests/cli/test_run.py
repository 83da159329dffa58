"""galley run in real use: one prompt, piped text, and a terminal."""

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from galley import LLM, SamplingParams
from galley.cli.run import _model_and_prompt
from tests.tools.checkpoint import make_calling

from .command import environment, galley

pytestmark = pytest.mark.xdist_group("cli-processes")

ONE_THREAD = ("--threads", "1")


@pytest.fixture(scope="module")
def llm(checkpoint: Path) -> Iterator[LLM]:
    with LLM(checkpoint, threads=1) as llm:
        yield llm


def greedy(llm: LLM, *turns: str, max_tokens: int = 12) -> str:
    """Return the answer to the last of ``turns``; the earlier ones alternate between user and assistant."""
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": turn} for i, turn in enumerate(turns)]
    return llm.chat(messages, SamplingParams(temperature=0.0, max_tokens=max_tokens))[0].text


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((None, None), (None, None)),
        (("org/name", None), ("org/name", None)),
        (("galley-demo", None), ("galley-demo", None)),
        (("galley-demo", "hi"), ("galley-demo", "hi")),
        (("llama3.2", None), ("llama3.2", None)),
        (("Qwen3:0.6b", "hi"), ("Qwen3:0.6b", "hi")),
        (("mistral:latest", None), ("mistral:latest", None)),
        (("./folder", None), ("./folder", None)),
        (("~/folder", "hi"), ("~/folder", "hi")),
        (("/", None), ("/", None)),
        (("hello", None), (None, "hello")),
        (("what is this?", None), (None, "what is this?")),
        (("a/b/c and more", None), (None, "a/b/c and more")),
        (("x" * 10_000, None), (None, "x" * 10_000)),
        (("a\0b", None), (None, "a\0b")),
    ],
)
def test_one_argument_is_a_model_or_a_prompt(
    arguments: tuple[str | None, str | None], expected: tuple[str | None, str | None]
) -> None:
    assert _model_and_prompt(*arguments) == expected


@pytest.mark.parametrize("name", ["llama3.2:9b", "gpt-4o", "phi:mini", "llama", "gemma2"])
@pytest.mark.parametrize("prompt", [None, "hi"])
def test_a_name_that_looks_like_a_model_is_no_prompt(name: str, prompt: str | None) -> None:
    with pytest.raises(click.BadParameter, match=f"'{name}' looks like a model's name"):
        _model_and_prompt(name, prompt)


def test_similar_names_are_suggested() -> None:
    with pytest.raises(click.BadParameter, match=r"did you mean .*llama3\.2"):
        _model_and_prompt("llama-3.2", None)


def test_two_words_are_no_model_and_prompt() -> None:
    with pytest.raises(click.BadParameter, match="'hello' is neither a folder, a hub id"):
        _model_and_prompt("hello", "world")


def test_an_existing_folder_is_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert _model_and_prompt("models", None) == (None, "models")
    (tmp_path / "models").mkdir()
    assert _model_and_prompt("models", None) == ("models", None)


def test_a_prompt_is_answered_once(checkpoint: Path, llm: LLM) -> None:
    flags = ("--temperature", "0", "--max-tokens", "12", *ONE_THREAD)
    done = galley("run", checkpoint, "the cat", *flags)
    assert done.returncode == 0, done.stderr
    assert done.stdout == greedy(llm, "the cat") + "\n"


def test_piped_text_is_a_prompt(checkpoint: Path, llm: LLM) -> None:
    flags = ("--temperature", "0", "--max-tokens", "12", *ONE_THREAD)
    done = galley("run", checkpoint, *flags, stdin="the mat")
    assert done.stdout == greedy(llm, "the mat") + "\n"


def test_sampling_flags_and_system_message_are_honored(checkpoint: Path, llm: LLM) -> None:
    messages = [{"role": "system", "content": "be a dog"}, {"role": "user", "content": "sit"}]
    params = SamplingParams(temperature=1.3, seed=5, max_tokens=20, top_p=0.9)
    flags = ("--temperature", "1.3", "--seed", "5", "--max-tokens", "20", "--top-p", "0.9")
    done = galley("run", checkpoint, "sit", "--system", "be a dog", *flags, *ONE_THREAD)
    assert done.stdout == llm.chat(messages, params)[0].text + "\n"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--temperature", "-1"), "temperature must be between 0 and 100"),
        (("--max-tokens", "9999"), "exceed the context"),
    ],
)
def test_what_cannot_be_honored_is_one_line(
    checkpoint: Path, args: tuple[str, ...], message: str
) -> None:
    done = galley("run", checkpoint, "hi", *args, *ONE_THREAD)
    assert done.returncode == 1
    assert done.stdout == ""
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_an_empty_prompt_is_refused(checkpoint: Path) -> None:
    done = galley("run", checkpoint, stdin=" \n")
    assert done.returncode == 1
    assert done.stderr == "galley: the prompt is empty\n"


class Terminal:
    """An interactive session in a pseudo-terminal."""

    def __init__(self, *args: str | Path, term: str = "dumb") -> None:
        self._fd, terminal = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "galley", "run", *map(str, args)],
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            start_new_session=True,
            env=environment(TERM=term, INPUTRC="/dev/null"),
        )
        os.close(terminal)
        self.screen = ""

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self._fd, text.encode())

    def interrupt(self) -> None:
        """Press Ctrl-C in a terminal until some output appears.

        readline misses a signal that arrives between its prompt and its wait.
        """
        self.process.send_signal(signal.SIGINT)
        while not select.select([self._fd], [], [], 2.0)[0]:
            self.process.send_signal(signal.SIGINT)

    def wait_for(self, pattern: str) -> str:
        """Return the output before ``pattern``, and remove both from the screen."""
        deadline = time.monotonic() + 60
        while not (found := re.search(pattern, self.screen)):
            assert time.monotonic() < deadline, self.screen
            if not select.select([self._fd], [], [], 1.0)[0]:
                continue
            try:
                data = os.read(self._fd, 65536)
            except OSError:  # the other side has exited
                data = b""
            assert data, f"{pattern!r} never came: {self.screen!r}"
            self.screen += data.decode(errors="replace").replace("\r\n", "\n")
        before, self.screen = self.screen[: found.start()], self.screen[found.end() :]
        return before

    def leave(self) -> int:
        """Wait for the exit, and return the exit code."""
        code = self.process.wait(30)
        os.close(self._fd)
        return code


@pytest.fixture
def terminal(checkpoint: Path) -> Iterator[Terminal]:
    flags = ("--temperature", "0", "--max-tokens", "12", *ONE_THREAD)
    terminal = Terminal(checkpoint, *flags)
    yield terminal
    if terminal.process.poll() is None:
        terminal.process.kill()
        terminal.process.wait()


PRINTABLE = re.compile(r"[a-z]+")


def words(text: str) -> list[str]:
    """Return the words that survive a terminal: the random model's control characters do not."""
    return PRINTABLE.findall(text)


def test_a_conversation_has_history_until_it_is_cleared(terminal: Terminal, llm: LLM) -> None:
    first = greedy(llm, "the cat")
    second = greedy(llm, "the cat", first, "and the dog")
    alone = greedy(llm, "and the dog")
    assert words(second) != words(alone)
    terminal.wait_for(">>> ")
    terminal.type("the cat\n")
    terminal.wait_for("the cat\n")
    assert words(terminal.wait_for("\n>>> ")) == words(first)
    terminal.type("and the dog\n")
    terminal.wait_for("dog\n")
    assert words(terminal.wait_for("\n>>> ")) == words(second)
    terminal.type("/clear\n")
    terminal.wait_for(">>> ")
    terminal.type("and the dog\n")
    terminal.wait_for("dog\n")
    assert words(terminal.wait_for("\n>>> ")) == words(alone)
    terminal.type("/bye\n")
    assert terminal.leave() == 0


def test_thinking_is_dim_in_a_terminal_and_in_no_pipe(tmp_path: Path) -> None:
    folder = make_calling(tmp_path / "thinking")
    template = folder / "chat_template.jinja"
    condition = "enable_thinking is defined and enable_thinking %}"
    template.write_text(template.read_text().replace(condition, "true %}"))
    flags = ("--temperature", "0", "--max-tokens", "12", *ONE_THREAD)
    with LLM(folder, threads=1) as llm:
        [answer] = llm.chat("the cat", SamplingParams(temperature=0.0, max_tokens=12))
    reasoning, text = answer.choices[0].reasoning, answer.text
    letters = re.compile(r"[!-~]")
    assert letters.search(reasoning)
    piped = galley("run", str(folder), "the cat", *flags)
    assert piped.stdout == text + "\n"
    for term, before in (("xterm", "\x1b[2m"), ("dumb", "(thinking) ")):
        terminal = Terminal(folder, "the cat", *flags, term=term)
        terminal.wait_for(re.escape(before))
        after = r"\(answer\)" if term == "dumb" else re.escape("\x1b[0m")
        assert letters.findall(terminal.wait_for(after)) == letters.findall(reasoning)
        assert terminal.leave() == 0


def test_commands_and_ways_to_leave(terminal: Terminal) -> None:
    terminal.wait_for(">>> ")
    terminal.type("/help\n")
    assert "forget the conversation" in terminal.wait_for(">>> ")
    terminal.type("/nonsense\n")
    assert "unknown command /nonsense" in terminal.wait_for(">>> ")
    terminal.interrupt()
    terminal.wait_for(">>> ")
    terminal.type("\x04")
    assert terminal.leave() == 0


def test_ctrl_c_stops_the_answer_and_not_the_session(checkpoint: Path) -> None:
    terminal = Terminal(checkpoint, "--temperature", "1", "--seed", "1", *ONE_THREAD)
    terminal.wait_for(">>> ")
    terminal.type("the cat\n")
    terminal.wait_for("the cat\n.")
    terminal.interrupt()
    terminal.wait_for("\n>>> ")
    terminal.type("x" * 3000 + "\n")
    terminal.wait_for("context is 512")
    terminal.wait_for(">>> ")
    terminal.type("/exit\n")
    assert terminal.leave() == 0
