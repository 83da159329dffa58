"""A speech model's decoding parameters (``generation_config.json``), its aligner, and shared encoders."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

from galley.errors import CheckpointError
from galley.graph.program import Program
from galley.models.fields import GENERATION_FILE, Fields
from galley.models.whisper import build_aligner, build_cross_kv, build_encoder, read_config
from galley.types.audio import SpeechInfo

_MOST_HEADS: Final = 80
"""Maximum alignment heads: their weights take 215 MB for 30 s of audio with the longest text."""


def read_speech(
    config: Mapping[str, Any], generation: Mapping[str, Any], program: Program
) -> SpeechInfo | None:
    """Read a checkpoint's input format and special tokens; return None for a text model.

    Fields that early checkpoints have in config.json instead of generation_config.json are read
    there.

    Raises:
        CheckpointError: a field is wrong, or names a token that the model does not have.
    """
    encoder = program.encoder
    if encoder is None:
        return None
    given, before = Fields(generation, file=GENERATION_FILE), Fields(config)
    suppress, begin_suppress = (
        (given if given.has(name) else before).tokens(name)
        for name in ("suppress_tokens", "begin_suppress_tokens")
    )
    start = "decoder_start_token_id"
    info = SpeechInfo(
        mels=encoder.mels,
        max_frames=encoder.max_positions,
        stride=encoder.max_positions // encoder.max_rows,
        start_token=given.whole(start, before.whole(start, 50257)),
        previous_token=_optional(given, "prev_sot_token_id"),
        no_timestamps_token=_optional(given, "no_timestamps_token_id"),
        languages=given.token_map("lang_to_id"),
        tasks=given.token_map("task_to_id"),
        suppress_tokens=suppress,
        begin_suppress_tokens=begin_suppress,
        max_initial_timestamp=_optional(given, "max_initial_timestamp_index"),
        alignment_heads=_alignment_heads(given) or _default_heads(before),
        low_confidence=given.number("low_confidence", 0) if given.has("low_confidence") else None,
    )
    _check_tokens(info, program.vocab_size)
    return info


def _alignment_heads(generation: Fields) -> tuple[tuple[int, int], ...]:
    name = "alignment_heads"
    heads = generation.pairs(name)
    if len(heads) > _MOST_HEADS:
        raise CheckpointError(
            f"lists {len(heads)} heads, more than the supported {_MOST_HEADS}",
            file=GENERATION_FILE,
            field=name,
        )
    return heads


def _default_heads(config: Fields) -> tuple[tuple[int, int], ...]:
    """Return all heads of the decoder's latter half, as openai/whisper does; none if too many."""
    c = read_config(config)
    layers = range(c.decoder_layers // 2, c.decoder_layers)
    if len(layers) * c.decoder_heads > _MOST_HEADS:
        return ()
    return tuple((layer, head) for layer in layers for head in range(c.decoder_heads))


def with_aligner(program: Program, config: Mapping[str, Any], speech: SpeechInfo) -> Program:
    """Return the program, with an aligner in it if the model has alignment heads.

    Raises:
        CheckpointError: the model does not have the heads that are named.
    """
    heads = speech.alignment_heads
    if not heads:
        return program
    return dataclasses.replace(program, aligner=build_aligner(Fields(config), heads))


def share_encoder(
    target: Program,
    target_config: Mapping[str, Any],
    draft: Program,
    draft_config: Mapping[str, Any],
) -> tuple[Program, Program]:
    """Return both programs, with the encoder of the first serving both."""
    encoder = build_encoder(Fields(target_config), returns_rows=True)
    cross_kv = build_cross_kv(Fields(draft_config))
    return (
        dataclasses.replace(target, encoder=encoder),
        dataclasses.replace(draft, encoder=cross_kv),
    )


def _optional(fields: Fields, name: str) -> int | None:
    return fields.whole(name, 0) if fields.has(name) else None


def _check_tokens(info: SpeechInfo, vocab_size: int) -> None:
    for name, ids in (
        ("decoder_start_token_id", (info.start_token,)),
        ("prev_sot_token_id", (info.previous_token or 0,)),
        ("no_timestamps_token_id", (info.no_timestamps_token or 0,)),
        ("lang_to_id", info.languages.values()),
        ("task_to_id", info.tasks.values()),
        ("suppress_tokens", info.suppress_tokens),
        ("begin_suppress_tokens", info.begin_suppress_tokens),
    ):
        for token in ids:
            if token >= vocab_size:
                raise CheckpointError(
                    f"is token {token}, but the model has {vocab_size} tokens",
                    file=GENERATION_FILE,
                    field=name,
                )
