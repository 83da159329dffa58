"""Whisper by CTranslate2."""

from collections.abc import Collection
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from galley.errors import CheckpointError, RequestError, SettingsError
from galley.formats.ctranslate2_file import MODEL_FILE, read_ctranslate2
from galley.formats.reader import open_checkpoint
from galley.models.registry import build_program
from galley.models.speech import read_speech
from galley.runtimes.batched import BatchedRuntime, Job, News
from galley.runtimes.ctranslate2_sizes import kv_bytes_per_row, kv_bytes_per_token
from galley.runtimes.drawing import Drawing, drawing
from galley.settings.engine import EngineSettings
from galley.types import Transcribe
from galley.types.audio import SpeechRules
from galley.types.model_info import ModelInfo, TextInfo

_UNSUPPORTED: Final = (
    "min_p",
    "top_p",
    "presence_penalty",
    "frequency_penalty",
    "penalty_window",
    "seed",
    "logprobs",
    "prompt_logprobs",
    "logit_bias",
    "min_tokens",
    "stop_token_ids",
    "ignore_eos",
    "grammar",
    "thinking",
)
"""Parameters that requests may not set, unless to what has no effect."""


class _Key(NamedTuple):
    """The parameters that the transcripts of a batch share, most of them the library function's.

    Attributes:
        frames: frames of the audio.
        prompt: length of the prompts, the index of the token that starts the transcript, and whether a
            prompt excludes timestamps.
        languages: tokens among which the spoken language is to be found; empty: transcribe.
    """

    frames: int
    prompt: tuple[int, int, bool]
    languages: tuple[int, ...]
    max_length: int
    beam_size: int
    length_penalty: float
    drawing: Drawing
    repetition_penalty: float
    max_initial: int
    suppress_blank: bool
    suppress_tokens: tuple[int, ...]


class CTranslate2Whisper(BatchedRuntime[Transcribe]):
    """Transcribes with a ``ctranslate2.models.Whisper``. A transcript is reported as a whole."""

    def __init__(
        self,
        library: Any,
        model: Any,
        info: ModelInfo,
        *,
        workers: int,
        most: int,
        kv_bytes: int | None,
    ) -> None:
        """Create the runtime.

        Args:
            library: the module ``ctranslate2``.
            model: its model.
            info: description of the model.
            workers, most, kv_bytes: as for :class:`BatchedRuntime`.
        """
        super().__init__(workers=workers, most=most, kv_bytes=kv_bytes)
        assert info.speech is not None
        self._vocab_size = info.require_text().vocab_size
        file = read_ctranslate2(Path(info.path) / MODEL_FILE)
        self._token_bytes, self._row_bytes = kv_bytes_per_token(file), kv_bytes_per_row(file)
        self._library = library
        self._model = model
        self._speech = info.speech
        [self._end] = info.require_text().eos_token_ids

    def job(
        self, request_id: str, payload: Transcribe, stop_ids: Collection[int]
    ) -> Job[Transcribe]:
        """Return the job of a request. Raises RequestError for rules that the library does not have."""
        key = self._key(payload)
        rows = self._speech.rows_of(payload.encoder_input.frames)
        size = rows * self._row_bytes
        size += key.beam_size * (len(payload.prompt) + payload.writes) * self._token_bytes
        return Job(request_id, payload, key, rows + len(payload.prompt), frozenset(stop_ids), size)

    def _key(self, payload: Transcribe) -> _Key:
        sampling, rules, speech = payload.sampling, payload.rules, self._speech
        starts = payload.prompt.index(speech.start_token)
        self._check(rules, starts)
        length, most = len(payload.prompt), payload.writes
        initial = None if rules.timestamps is None else rules.timestamps.max_initial
        return _Key(
            frames=payload.encoder_input.frames,
            prompt=(length, starts, speech.no_timestamps_token in payload.prompt),
            languages=tuple(sorted(rules.allowed_tokens)),
            # The library takes half of this, or what the prompt but its last token leaves of it.
            max_length=max(2 * most, length + most - 1),
            beam_size=sampling.num_beams,
            length_penalty=sampling.length_penalty,
            drawing=drawing(sampling, self._vocab_size),
            repetition_penalty=sampling.repetition_penalty or 1.0,
            max_initial=speech.max_rows if initial is None else initial,
            suppress_blank=bool(rules.begin_suppress_tokens),
            suppress_tokens=rules.suppress_tokens,
        )

    def _check(self, rules: SpeechRules, starts: int) -> None:
        """Raise RequestError for a rule other than those that the library has."""
        speech = self._speech
        if rules.begin_suppress_tokens not in ((), speech.begin_suppress_tokens):
            raise RequestError(
                "engine ctranslate2 suppresses the first tokens that config.json lists, or none",
                param="begin_suppress_tokens",
            )
        if rules.allowed_tokens and not self._model.is_multilingual:
            raise RequestError(
                "engine ctranslate2 does not detect the language with this model, because its vocabulary "
                "is not that of a multilingual Whisper; set language",
                param="language",
            )
        if not set(rules.allowed_tokens) <= set(speech.languages.values()):
            raise RequestError(
                "engine ctranslate2 restricts tokens only to those of languages",
                param="allowed_tokens",
            )
        if rules.no_speech not in (None, (starts, speech.no_speech_token)):
            raise RequestError(
                "engine ctranslate2 reports the probability of no speech, and of no other token",
                param="no_speech",
            )

    def compute(self, batch: list[Job[Transcribe]]) -> None:
        """Transcribe the audio of a batch, or find its languages, and report the results."""
        key = batch[0].key
        assert isinstance(key, _Key)
        inputs = [job.payload.encoder_input for job in batch]
        frames = [np.frombuffer(one.data, "<f4").reshape(one.frames, one.mels).T for one in inputs]
        features = np.ascontiguousarray(np.stack(frames), np.float32)  # [batch, mels, frames]
        audio = self._library.StorageView.from_array(features)
        if key.languages:
            self._find_languages(batch, key, self._model.detect_language(audio))
            return
        results = self._model.generate(
            audio,
            [job.payload.prompt for job in batch],
            beam_size=key.beam_size,
            length_penalty=key.length_penalty,
            repetition_penalty=key.repetition_penalty,
            max_length=key.max_length,
            return_scores=True,
            return_no_speech_prob=True,
            max_initial_timestamp_index=key.max_initial,
            suppress_blank=key.suppress_blank,
            suppress_tokens=list(key.suppress_tokens),
            sampling_topk=key.drawing.top_k,
            sampling_temperature=key.drawing.temperature,
        )
        for job, result in zip(batch, results, strict=True):
            self.report(self._transcript(job, result, key.length_penalty))

    def _find_languages(
        self, batch: list[Job[Transcribe]], key: _Key, results: list[list[tuple[str, float]]]
    ) -> None:
        """Report the likeliest of the languages for each job."""
        for job, ranked in zip(batch, results, strict=True):
            found = ((self._speech.languages.get(name), share) for name, share in ranked)
            likeliest = [(share, token) for token, share in found if token in key.languages]
            share, token = max(likeliest)
            self.report(News(job, [token], "length", scores=[float(np.log(share))]))

    def _transcript(
        self, job: Job[Transcribe], result: Any, length_penalty: float
    ) -> News[Transcribe]:
        """Return a result, with its end token.

        The library reports the log-probability of the whole text, divided by a power of its length; each
        token gets the mean, the end token included.
        """
        tokens: list[int] = result.sequences_ids[0]
        total = result.scores[0] * max(1, len(tokens)) ** length_penalty
        ended = len(tokens) < job.payload.writes
        if ended:
            tokens = [*tokens, self._end]
        return News(
            job,
            tokens,
            "stop" if ended else "length",
            scores=[total / len(tokens)] * len(tokens),
            no_speech_prob=None if job.payload.rules.no_speech is None else result.no_speech_prob,
        )


def whisper_info(settings: EngineSettings, folder: Path) -> ModelInfo:
    """Return the description of a Whisper model.

    Words are not timed: the library reports no attention weights.

    Raises:
        CheckpointError: a file is missing or damaged.
        SettingsError: ``max_model_len`` exceeds the model's context.
    """
    checkpoint = open_checkpoint(folder)
    program = build_program(checkpoint.config, checkpoint.weights())
    speech = read_speech(checkpoint.config, checkpoint.generation, program)
    if speech is None or len(checkpoint.eos_token_ids) != 1:
        raise CheckpointError("is not a Whisper model with one end token", file=str(folder))
    speech = msgspec.structs.replace(speech, alignment_heads=())
    trained = int(checkpoint.config["max_target_positions"])
    context = settings.max_model_len or trained
    if context > trained:
        raise SettingsError(f"max_model_len is {context}, but {folder} was trained for {trained}")
    return ModelInfo(
        name=settings.model or folder.name,
        path=str(folder),
        family="whisper",
        tasks=speech.tasks_done,
        executor="ctranslate2",
        text=TextInfo(
            vocab_size=program.vocab_size,
            max_model_len=context,
            eos_token_ids=checkpoint.eos_token_ids,
            defaults=settings.with_own(checkpoint.defaults),
            unsupported=_UNSUPPORTED,
        ),
        speech=speech,
    )
