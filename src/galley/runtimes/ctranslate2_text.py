"""Language models of CTranslate2."""

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Final, NamedTuple

from galley.errors import CheckpointError, SettingsError, shown
from galley.formats.checkpoint import sampling_defaults
from galley.formats.ctranslate2 import read_vocabulary
from galley.formats.ctranslate2_file import MODEL_FILE, CTranslate2File, read_ctranslate2
from galley.formats.json_file import read_json
from galley.runtimes.batched import BatchedRuntime, Job, News
from galley.runtimes.ctranslate2_sizes import kv_bytes_per_token, matrix_shape
from galley.runtimes.drawing import Drawing, drawing
from galley.runtimes.text_build import check_defaults
from galley.settings.engine import EngineSettings
from galley.types import FinishReason, Generate, SamplingParams
from galley.types.model_info import ModelInfo, TextInfo

DECODER_SPEC: Final = "TransformerDecoderSpec"

_SPREAD: Final = 64
"""The most tokens by which prompts of a batch differ: what exceeds the shortest is read token by token."""

_MOST_CONTEXT: Final = 1 << 24
"""Tokenizers have larger numbers for a context that is not known."""

_UNSUPPORTED: Final = (
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "penalty_window",
    "seed",
    "logprobs",
    "prompt_logprobs",
    "logit_bias",
    "grammar",
    "thinking",
    "num_beams",
)
"""Parameters that requests may not set.

CTranslate2 reports the log-probability of the chosen token alone, and nothing of a beam search before the
whole batch has ended.
"""


class _Key(NamedTuple):
    """The parameters that the texts of a batch have in common.

    Attributes:
        least: tokens before which ``stop_ids`` are not chosen.
        prefix: tokens of the prompts that count as chosen ones, if that matters for ``least``.
    """

    drawing: Drawing
    repetition_penalty: float
    least: int
    prefix: int
    stop_ids: tuple[int, ...]


class CTranslate2Texts(BatchedRuntime[Generate]):
    """Continues texts with a ``ctranslate2.Generator``."""

    def __init__(
        self,
        model: Any,
        folder: Path,
        vocabulary: list[str],
        *,
        workers: int,
        most: int,
        kv_bytes: int | None,
    ) -> None:
        """Create the runtime.

        Args:
            model: the library's model.
            folder: its folder.
            vocabulary: its tokens by id, which is how the library names them.
            workers, most, kv_bytes: as for :class:`BatchedRuntime`.
        """
        super().__init__(workers=workers, most=most, kv_bytes=kv_bytes, spread=_SPREAD)
        self._model = model
        self._token_bytes = kv_bytes_per_token(read_ctranslate2(folder / MODEL_FILE))
        self._vocabulary = vocabulary

    def job(self, request_id: str, payload: Generate, stop_ids: Collection[int]) -> Job[Generate]:
        """Return the job of a request."""
        length = len(payload.prompt) + len(payload.output)
        least = max(0, payload.sampling.min_tokens - len(payload.output))
        drawn = drawing(payload.sampling, len(self._vocabulary))
        key = _key(payload.sampling, drawn, least, length, stop_ids)
        size = (len(payload.prompt) + payload.writes) * self._token_bytes
        return Job(request_id, payload, key, length, frozenset(stop_ids), size)

    def compute(self, batch: list[Job[Generate]]) -> None:
        """Continue the texts of a batch, and report each token."""
        key = batch[0].key
        assert isinstance(key, _Key)
        prompts = [[*job.payload.prompt, *job.payload.output] for job in batch]
        # The penalty counts the tokens of a prompt only if the library chooses them one by one; it
        # then reports those after the first, too.
        chosen = key.repetition_penalty != 1
        skips = [len(prompt) - 1 if chosen else 0 for prompt in prompts]
        self._model.generate_batch(
            [[self._vocabulary[token] for token in prompt] for prompt in prompts],
            include_prompt_in_result=chosen,
            max_length=1 + max(skip + job.left for skip, job in zip(skips, batch, strict=True)),
            min_length=key.least + key.prefix,
            end_token=list(key.stop_ids),
            repetition_penalty=key.repetition_penalty,
            sampling_topk=key.drawing.top_k,
            sampling_topp=key.drawing.top_p,
            sampling_temperature=key.drawing.temperature,
            callback=_on_token(batch, skips, self.report),
        )


def _on_token(
    batch: list[Job[Generate]], skips: list[int], report: Callable[[News[Generate]], None]
) -> Callable[[Any], bool]:
    """Return a function that reports a token, and returns whether its text ends with it.

    The library's own thread frees the function. It must not be the last to know the model, whose end waits
    for that thread.
    """
    left = [job.left for job in batch]

    def on_token(step: Any) -> bool:
        number, token = int(step.batch_id), int(step.token_id)
        job = batch[number]
        if job.cancelled or skips[number]:
            skips[number] -= 1
            return job.cancelled
        left[number] -= 1
        reason: FinishReason | None = None if left[number] else "length"
        if token in job.stop_ids:
            reason = "stop"
        report(News(job, [token], reason))
        return reason is not None

    return on_token


def _key(
    sampling: SamplingParams, drawn: Drawing, least: int, length: int, stop_ids: Collection[int]
) -> _Key:
    penalty = sampling.repetition_penalty or 1.0
    return _Key(
        drawing=drawn,
        repetition_penalty=penalty,
        least=least,
        prefix=length - 1 if least and penalty != 1 else 0,
        stop_ids=tuple(sorted(stop_ids)) if least else (),
    )


def text_info(settings: EngineSettings, folder: Path) -> tuple[ModelInfo, list[str]]:
    """Return the description of a language model, and its vocabulary.

    Raises:
        CheckpointError: a file is missing or damaged.
        SettingsError: the context is not known, or shorter than ``max_model_len``, or a default of sampling
            cannot be honored.
    """
    file = read_ctranslate2(folder / MODEL_FILE)
    vocabulary = read_vocabulary(folder)
    ids = {token: number for number, token in enumerate(vocabulary)}
    rows, _ = matrix_shape(file, "decoder/embeddings/weight")
    if len(ids) < len(vocabulary) or len(vocabulary) > rows:
        raise CheckpointError(
            f"the vocabulary has {len(vocabulary)} tokens, {len(ids)} different ones; the model has {rows}",
            file=str(folder),
        )
    generation_file = folder / "generation_config.json"
    generation = read_json(generation_file) if generation_file.exists() else {}
    defaults = settings.with_own(sampling_defaults(generation, str(generation_file)))
    check_defaults(defaults, _UNSUPPORTED, "CTranslate2")
    info = ModelInfo(
        name=settings.model or folder.name,
        path=str(folder),
        family=file.spec.removesuffix("Spec"),
        tasks=("generate",),
        executor="ctranslate2",
        text=TextInfo(
            vocab_size=len(vocabulary),
            max_model_len=_context(settings, folder, file),
            eos_token_ids=_end_tokens(folder, ids),
            defaults=defaults,
            unsupported=_UNSUPPORTED,
        ),
    )
    return info, vocabulary


def _end_tokens(folder: Path, ids: dict[str, int]) -> tuple[int, ...]:
    path = folder / "config.json"
    named = read_json(path).get("eos_token")
    tokens = [str(token) for token in (named if isinstance(named, list) else [named])]
    if not all(token in ids for token in tokens):
        raise CheckpointError(
            f"is {shown(named)}, not tokens of the vocabulary", file=str(path), field="eos_token"
        )
    return tuple(ids[token] for token in tokens)


def _context(settings: EngineSettings, folder: Path, file: CTranslate2File) -> int:
    """Return the most tokens of a text: what is set, up to what the files say."""
    trained = _trained_context(folder, file)
    wanted = settings.max_model_len or trained
    if wanted is None:
        raise SettingsError(
            f"{folder} does not say how many tokens a text may have: set max_model_len to the context that "
            "the model was trained for"
        )
    if trained is not None and wanted > trained:
        raise SettingsError(f"max_model_len is {wanted}, but {folder} was trained for {trained}")
    return wanted


def _trained_context(folder: Path, file: CTranslate2File) -> int | None:
    learned = "decoder/position_encodings/encodings"
    if learned in file.variables:
        return matrix_shape(file, learned)[0]
    path = folder / "tokenizer_config.json"
    most = read_json(path).get("model_max_length") if path.exists() else None
    return most if isinstance(most, int) and 0 < most < _MOST_CONTEXT else None
