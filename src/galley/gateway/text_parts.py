"""The parts of a model of texts outside of its engine: tokenizer, text workers and chat format."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from galley.service.text_pool import TextPool
from galley.settings.config import Settings
from galley.text.template import ChatTemplate
from galley.text.tokenizer import Tokenizer
from galley.tools.formats import ChatFormat, chat_format
from galley.types import OnPhase
from galley.types.model_info import ModelInfo


@dataclass(frozen=True, eq=False)
class TextParts:
    """The parts that turn text into token ids and back.

    Attributes:
        pool: the workers that render and encode.
        tokenizer: the server's own copy, which decodes streams.
        format: the model's format of tools, tool calls and thinking.
        system_prompt: default for conversations without one.
    """

    pool: TextPool
    tokenizer: Tokenizer
    format: ChatFormat
    system_prompt: str


class TextLoading:
    """Loads the parts of a model of texts while its engine loads."""

    def __init__(
        self,
        settings: Settings,
        name: str,
        folder: Path,
        *,
        unchanged: Callable[[], bool],
        on_phase: OnPhase,
        remembers: bool = False,
    ) -> None:
        """Start nothing yet.

        Args:
            settings: the model's settings.
            name, folder: the model's name and its checkpoint.
            unchanged: returns whether the folder's files are still those that are served.
            on_phase: called with "text" and its duration in seconds.
            remembers: whether the token ids of texts are kept, for requests that come again.
        """
        self._settings = settings
        self._folder = folder
        self._on_phase = on_phase
        self._pool = TextPool(settings, name, folder, unchanged=unchanged, remembers=remembers)
        self._template: ChatTemplate | None = None

    async def begin(self) -> None:
        """Start the first worker, which loads the tokenizer and the chat template within its budget.

        Raises:
            CheckpointError: the chat template cannot be read.
            EngineNotReady: no worker can be started.
        """
        template = await asyncio.to_thread(ChatTemplate.load, self._folder)
        await self._pool.begin(chats=template.exists)
        self._template = template

    async def load(self) -> Tokenizer:
        """Wait for the worker, then load the tokenizer here, too.

        Raises:
            ModelError: the tokenizer or the chat template cannot be used.
            EngineNotReady: no worker can be started.
        """
        began = time.monotonic()
        if self._template is None:
            await self.begin()
        assert self._template is not None
        await self._pool.loaded(chats=self._template.exists)
        tokenizer = await asyncio.to_thread(Tokenizer.load, self._folder)
        await asyncio.to_thread(lambda: tokenizer.last_token)
        self._on_phase("text", time.monotonic() - began)
        return tokenizer

    async def parts(self, tokenizer: Tokenizer, info: ModelInfo) -> TextParts:
        """Check that the tokenizer fits the loaded model, and return all parts.

        Raises:
            ModelError: it does not fit, or texts cannot be streamed.
        """
        assert self._template is not None
        if info.speech is not None:
            # The transcript and the text before it are encoded in this process.
            tokenizer.check_plain(self._folder)
        tokenizer.check_vocabulary(info.require_text().vocab_size, self._folder)
        if info.vectors is None:
            tokenizer.check_streamable(self._folder)
        settings = self._settings
        form = await asyncio.to_thread(
            chat_format,
            self._template,
            tool_parser=settings.tool_parser,
            reasoning_parser=settings.reasoning_parser,
            volatile_lines=settings.volatile_lines,
        )
        return TextParts(self._pool, tokenizer, form, settings.system_prompt)

    async def close(self) -> None:
        """End the workers. Idempotent."""
        await self._pool.close()
