"""``galley.LLM``: the engine in the caller's own process, for offline batches, tests and notebooks."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from galley.errors import ModelError, SettingsError
from galley.llm.chat import as_options, chat_prompt
from galley.llm.inputs import (
    Conversation,
    Message,
    Prompt,
    as_conversation,
    as_conversations,
    as_params,
    as_prompt,
    as_prompts,
)
from galley.llm.local import Closable, LocalEngine
from galley.llm.outputs import ChatDelta, RequestOutput, chat_deltas
from galley.llm.text_runs import TextRuns
from galley.service.protocol import Engine
from galley.service.requests import check_task
from galley.settings.engine import DType, EngineSettings, ExecutorName, KVType, WeightDType
from galley.settings.fields import by_field
from galley.text.stream import Delta
from galley.text.template import ChatTemplate
from galley.text.tokenizer import Tokenizer
from galley.tools.formats import chat_format
from galley.types import SamplingParams
from galley.types.model_info import ModelInfo

if TYPE_CHECKING:
    from galley.llm.embed import Vectors


class LLM(Closable):
    """A loaded model. Use it as a context manager, or :meth:`close` it; nothing is left running.

    Methods may be called from several threads; their requests share the batch.
    """

    def __init__(
        self,
        model: str | Path = "",
        *,
        dtype: DType = "auto",
        weight_dtype: WeightDType = "auto",
        kv_dtype: KVType = "auto",
        executor: ExecutorName = "auto",
        max_model_len: int | None = None,
        kv_cache_tokens: int | None = None,
        max_batch_tokens: int = 512,
        prefix_cache: bool = True,
        **settings: Any,
    ) -> None:
        """Load a model.

        Args:
            model: a folder or a hub id; empty for the bundled model.
            dtype: type for ``weight_dtype`` and ``kv_dtype`` where these are "auto"; "auto": the
                type of the checkpoint's matrices.
            weight_dtype: type of the weights; "auto": ``dtype``. ``quantize`` is an alias.
            kv_dtype: type of the KV cache (executor "reference": as ``dtype``, or rounded as int8
                or int4); "auto": ``dtype``, but "bfloat16" if weights are quantized and float32 is
                not requested (executor "cpu"), and "int8" if the checkpoint was made for keys and
                values of 8 bits.
            executor: implementation that runs the model; "auto": "cpu" on device "cpu", else
                "reference".
            max_model_len: context limit in tokens; default: the model's own.
            kv_cache_tokens: size of the KV cache in tokens; default: derived from the available
                memory.
            max_batch_tokens: token budget of one engine step.
            prefix_cache: share the KV blocks of equal prefixes.
            settings: any other field of :class:`galley.settings.engine.EngineSettings`.

        Raises:
            ModelError: the model cannot be found or used.
            SettingsError: a setting is wrong.
        """
        if weight_dtype != "auto":
            settings = {"weight_dtype": weight_dtype, **settings}
        self._load(
            EngineSettings(
                model=str(model),
                dtype=dtype,
                kv_dtype=kv_dtype,
                executor=executor,
                max_model_len=max_model_len,
                kv_cache_tokens=kv_cache_tokens,
                max_batch_tokens=max_batch_tokens,
                prefix_cache=prefix_cache,
                **by_field(EngineSettings, settings, source="galley.LLM"),
            )
        )

    @classmethod
    def from_settings(cls, settings: EngineSettings) -> Self:
        """Load a model from a settings object, as the command line does.

        Raises the same errors as the constructor.
        """
        llm = cls.__new__(cls)
        llm._load(settings)
        return llm

    def _load(self, settings: EngineSettings) -> None:
        if settings.max_adapters:
            raise SettingsError("max_adapters: adapters are for galley serve; leave it out")
        self._local = LocalEngine(settings)
        self._system_prompt = settings.system_prompt
        folder = self._local.folder
        if self.info.text is None:
            self._local.close()
            raise SettingsError(
                f"{folder} does not work with text; galley serve serves it to clients of its protocol"
            )
        self._tokenizer = Tokenizer.load(folder) if Tokenizer.is_there(folder) else None
        if self._tokenizer is not None:
            self._tokenizer.check_vocabulary(self.info.text.vocab_size, folder)
            if self.info.vectors is None:
                self._tokenizer.check_streamable(folder)
        self._template = ChatTemplate.load(folder)
        self._format = chat_format(
            self._template,
            tool_parser=settings.tool_parser,
            reasoning_parser=settings.reasoning_parser,
            volatile_lines=settings.volatile_lines,
        )
        self._runs = TextRuns(self._local, self._tokenizer, self._format)

    def __repr__(self) -> str:
        return f"LLM({self._local.describe()})"

    @property
    def _engine(self) -> Engine:
        return self._local.engine

    @property
    def info(self) -> ModelInfo:
        """Sizes, defaults and start-up times of the model."""
        return self._local.info

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer. Raises ModelError if the checkpoint has none."""
        if self._tokenizer is None:
            raise ModelError(
                f"{self.info.path} has no tokenizer.json; pass token ids instead of text"
            )
        return self._tokenizer

    def generate(
        self,
        prompts: Sequence[Prompt] | Prompt,
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool = False,
    ) -> list[RequestOutput]:
        """Continue every prompt, all of them in one continuous batch.

        Args:
            prompts: texts or lists of token ids; a single prompt is treated as a list of one.
            params: parameters for all prompts, or a sequence with one for each.
            progress: show a progress bar of finished answers on stderr or in the notebook.

        Raises:
            RequestError: a prompt or parameter is wrong; nothing has been run.
        """
        ids = [self._ids(prompt) for prompt in as_prompts(prompts)]
        return self._runs.run(ids, as_params(params, len(ids)), progress)

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Iterator[Delta]:
        """Stream the continuation of one prompt. Dropping the iterator cancels the request.

        Raises:
            RequestError: the prompt or a parameter is wrong, or n is not 1.
            EngineError: the engine failed; may be raised during iteration.
        """
        return self._runs.stream(self._ids(as_prompt(prompt)), params)[0]

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool = False,
        **options: Any,
    ) -> list[RequestOutput]:
        """Answer one conversation, or each of several.

        Args:
            messages: a user's text, ``[{"role": ..., "content": ...}, ...]``, or a list of these.
            params: parameters for all conversations, or a sequence with one for each.
            progress: show a progress bar of finished answers on stderr or in the notebook.
            options: tools and thinking, for all conversations; see
                :class:`galley.llm.chat.ChatOptions`.

        Raises:
            RequestError: the template refuses the messages, or a parameter is wrong.
        """
        self._check_writes()
        overrides = as_options(options)
        conversations = [
            overrides.conversation(one).with_system_prompt(self._system_prompt)
            for one in as_conversations(messages)
        ]
        prompts = [
            chat_prompt(one, p, self._template, self._format, self.tokenizer)
            for one, p in zip(conversations, as_params(params, len(conversations)), strict=True)
        ]
        parsers = [prompt.new_parser for prompt in prompts]
        return self._runs.run(
            [p.ids for p in prompts], [p.params for p in prompts], progress, parsers
        )

    def chat_stream(
        self, messages: Conversation, params: SamplingParams | None = None, **options: Any
    ) -> Iterator[ChatDelta]:
        """Stream one answer, with thinking separate from text.

        Dropping the iterator cancels the request.

        Args:
            messages, params, options: as for :meth:`chat`.

        Raises:
            RequestError: the template refuses the messages, a parameter is wrong, or n is not 1.
            EngineError: the engine failed; may be raised during iteration.
        """
        self._check_writes()
        conversation = as_options(options).conversation(as_conversation(messages))
        conversation = conversation.with_system_prompt(self._system_prompt)
        [params] = as_params(params, 1)
        prompt = chat_prompt(conversation, params, self._template, self._format, self.tokenizer)
        parser = prompt.new_parser()
        deltas, result = self._runs.stream(prompt.ids, prompt.params, parser)
        return chat_deltas(deltas, result)

    def _check_writes(self) -> None:
        """Refuse embedding models here, rather than for the chat template that they lack."""
        if self.info.vectors is not None:
            check_task(self.info, "generate")

    def score(
        self, prompts: Sequence[Prompt] | Prompt, *, progress: bool = False
    ) -> list[list[float]]:
        """Return the log-probability (nats) of every token after the first, for each prompt.

        Args:
            prompts: as for :meth:`generate`; a text is encoded with ``tokenizer.encode``.
            progress: show a progress bar of finished prompts on stderr or in the notebook.

        Raises:
            RequestError: a prompt is wrong; nothing has been run.
        """
        ids = [self._ids(prompt) for prompt in as_prompts(prompts)]
        params = SamplingParams(temperature=0.0, max_tokens=0, prompt_logprobs=0)
        outputs = self._runs.run(ids, [params] * len(ids), progress)
        return [[entry.logprob for entry in o.prompt_logprobs or []] for o in outputs]

    def embed(
        self,
        texts: Sequence[Prompt] | Prompt,
        *,
        dimensions: int | None = None,
        prompt_name: str | None = None,
        truncate: bool = False,
        progress: bool = False,
    ) -> "Vectors":
        """Embed texts with an embedding model; return [texts, width] float32.

        Args:
            texts: texts or lists of token ids; a single one is treated as a list of one.
            dimensions: number of leading dimensions of each vector to keep; None: all.
            prompt_name: name of one of the model's prompts, such as "query", to put before the
                texts.
            truncate: cut texts to the model's limit; otherwise longer texts are refused.
            progress: show a progress bar of finished texts on stderr or in the notebook.

        Raises:
            RequestError: a text or an argument is wrong, or the model does not embed; nothing has
                been run.
        """
        from tqdm.auto import tqdm  # type: ignore[import-untyped]

        from galley.llm.embed import embed

        given = as_prompts(texts)
        with tqdm(total=len(given), disable=not progress, unit="text") as bar:
            return embed(
                self._local,
                lambda: self.tokenizer,
                given,
                dimensions=dimensions,
                prompt_name=prompt_name,
                truncate=truncate,
                advance=bar.update,
            )

    def rerank(
        self, query: str, documents: Sequence[str], *, truncate: bool = False
    ) -> list[float]:
        """Score how well each document answers the query, with a reranker (cross-encoder).

        Args:
            query: the query's text.
            documents: the documents' texts.
            truncate: cut pairs to the model's limit, the longer text first; otherwise they are
                refused.

        Raises:
            RequestError: a text is too long, or the model does not rerank; nothing has been run.
        """
        from galley.llm.embed import rerank

        return rerank(self._local, self.tokenizer, query, documents, truncate=truncate)

    def encode_chat(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = True
    ) -> list[int]:
        """Encode a conversation to token ids with the checkpoint's chat template.

        Raises:
            RequestError: there is no template, or it refuses the messages.
        """
        return self._template.encode(
            self.tokenizer, messages, add_generation_prompt=add_generation_prompt
        )

    @property
    def has_chat_template(self) -> bool:
        """Whether the checkpoint has a chat template, which :meth:`chat` needs."""
        return self._template.exists

    def close(self) -> None:
        """Free the model. Further calls fail."""
        self._local.close()

    def _ids(self, prompt: str | list[int]) -> list[int]:
        return self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
