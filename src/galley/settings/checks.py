"""Checks of the settings of `galley serve` that concern several settings or the form of a value."""

import math
import re
from typing import TYPE_CHECKING

from galley.errors import SettingsError
from galley.redact.spans import KINDS

if TYPE_CHECKING:
    from galley.settings.config import Settings

ADAPTER_NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]*\Z"
"""Pattern of adapter names: no colon, which separates them from the model's name."""

_ORIGIN = re.compile(r"https?://([\w.-]+|\[[\da-fA-F:.]+\])(:\d{1,5})?", re.ASCII)

_REDIS = re.compile(r"(rediss?|unix)://")

_URL = re.compile(r"https?://[^\s/]+(/\S*)?")


def check_server(own: "Settings") -> None:
    """Raise SettingsError for settings that do not fit together, or of a wrong form."""
    _check_observation(own)
    _check_origins(own)
    _check_redact(own)
    if own.stored_responses_at and not _REDIS.match(own.stored_responses_at):
        raise SettingsError(
            "stored_responses_at must begin with redis://, rediss:// or unix://, such as "
            "redis://localhost:6379/0"
        )
    if own.record_texts and not own.record:
        raise SettingsError(
            f"record_texts is {own.record_texts!r}, but there is no record; set record to its folder"
        )
    if own.max_upload_bytes is not None and own.max_upload_bytes < own.max_audio_bytes:
        raise SettingsError(
            f"max_upload_bytes ({own.max_upload_bytes}) must be at least max_audio_bytes "
            f"({own.max_audio_bytes}), or no recording of that size could be sent"
        )
    for name in ("api_key", "admin_key"):
        if any(not key.strip() for key in getattr(own, name)):
            raise SettingsError(f"{name}: one of the keys is empty")
    if own.models and own.served_model_name:
        names = ", ".join(model.name for model in own.models)
        raise SettingsError(
            f"served_model_name is {own.served_model_name!r}, but the models have names: {names}"
        )
    _check_adapters(own)
    _check_replicas(own)


def _check_replicas(own: "Settings") -> None:
    if not (own.replicas or own.replica or own.replica_file):
        raise SettingsError(
            "replicas is 0, so at least one replica on another machine is needed: --replica HOST:PORT, "
            "or --replica-file"
        )
    if own.replica and own.models:
        raise SettingsError("replica: a server with replicas on other machines serves one model")
    several = own.most_loaded > 1 or bool(own.model_repository or own.models_dir)
    if own.kv_events and several:
        raise SettingsError(
            "kv_events is for a server of one model; serve each with its own server"
        )
    if own.replicas > 1 and several and own.take_turns:
        raise SettingsError(
            f"replicas is {own.replicas}, but several models take turns on the cores, and so would "
            "the replicas of each; set take_turns to false, or serve each model with its own server"
        )


def _check_observation(own: "Settings") -> None:
    if math.isnan(own.model_keep_alive):
        raise SettingsError("model_keep_alive must be a number of seconds, got nan")
    if own.otlp_endpoint and not _URL.fullmatch(own.otlp_endpoint):
        raise SettingsError(
            f"otlp_endpoint: {own.otlp_endpoint!r} is not a URL such as http://localhost:4318"
        )


def _check_redact(own: "Settings") -> None:
    for kind in own.redact:
        if kind not in ("all", *KINDS):
            raise SettingsError(f"redact: {kind!r} is unknown; supported: all, {', '.join(KINDS)}")


def _check_origins(own: "Settings") -> None:
    for origin in own.cors_origin:
        if origin != "*" and not _ORIGIN.fullmatch(origin):
            raise SettingsError(
                f"cors_origin: {origin!r} is not an origin such as "
                "https://app.example.com:8443 (without a path), or * for all"
            )


def _check_adapters(own: "Settings") -> None:
    names = [model.name for model in own.models]
    seen = set()
    for text in own.adapter:
        model, name, folder = parsed_adapter(text)
        if not folder or not re.match(ADAPTER_NAME, name):
            raise SettingsError(
                f"adapter: {text!r} is not NAME=FOLDER (names have letters, digits and . _ -)"
            )
        if (model, name) in seen:
            raise SettingsError(f"adapter: two adapters have the name {name!r}")
        seen.add((model, name))
        if names and model not in names:
            raise SettingsError(
                f"adapter: {text!r} lacks the model; give MODEL:{name}={folder} with one of "
                f"{', '.join(names)}"
            )
        if not names and model:
            raise SettingsError(f"adapter: there is only one model; give {name}={folder}")
    if own.adapter and own.max_adapters == 0:
        raise SettingsError("max_adapters is 0, but an adapter is given; leave out one of them")


def parsed_adapter(text: str) -> tuple[str, str, str]:
    """Return model, name and folder of ``MODEL:NAME=FOLDER``; parts that are left out are empty."""
    left, _, folder = text.partition("=")
    model, _, name = left.rpartition(":")
    return model, name, folder
