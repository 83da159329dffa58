"""The loader of voices, of all forms."""

import time
from collections.abc import Callable
from pathlib import Path

from galley.machine import available_cores
from galley.runtimes.kokoro import load_kokoro
from galley.runtimes.library import OF_TEXT, model_file, refuse_settings, step_meter
from galley.runtimes.piper import load_piper
from galley.runtimes.voice_engine import VoiceEngine
from galley.runtimes.voice_options import VoiceOptions
from galley.settings.engine import EngineSettings
from galley.settings.engine_choice import voice_config
from galley.types import OnPhase
from galley.types.model_info import ModelInfo, OnLedger


def load(
    settings: EngineSettings,
    folder: Path,
    on_phase: OnPhase | None = None,
    pause: Callable[[], None] | None = None,
    on_ledger: OnLedger | None = None,
) -> VoiceEngine:
    """Load a voice, or the only one in a folder: see :class:`galley.service.protocol.EngineLoader`.

    Raises:
        ModelError, SettingsError: the files or the settings cannot be used.
    """
    options = settings.options_as(VoiceOptions)
    refuse_settings(settings, "is a voice: leave it out for this model", OF_TEXT)
    began = time.monotonic()
    file = model_file(folder, [".onnx"])
    is_piper = voice_config(file).is_file()
    load_form = load_piper if is_piper else load_kokoro
    voice = load_form(file, options, settings.threads or available_cores())
    if on_phase is not None:
        on_phase("load", time.monotonic() - began)
    info = ModelInfo(
        name=settings.model or folder.name,
        path=str(folder),
        family="vits" if is_piper else "kokoro",
        tasks=("speak",),
        executor="onnxruntime",
        voice=voice.info,
    )
    return VoiceEngine(
        voice,
        info,
        max_active=options.max_active,
        priority_steps=settings.priority_steps,
        meter=step_meter(pause),
    )
