"""The experiments, in the order of the page."""

from collections.abc import Mapping
from typing import Final

from galley.errors import SettingsError
from galley.lab.experiment import Experiment
from galley.lab.experiments import (
    adapters,
    batch_size,
    batching,
    beams,
    chunked_prefill,
    codecs,
    cold_start,
    distilled,
    isa,
    kv_allocation,
    kv_bytes,
    kv_types,
    moe,
    observers,
    padding,
    passes,
    prefix_cache,
    recordings_together,
    response_cache,
    roofline,
    rounding,
    semantic_cache,
    speculation,
    speech_detection,
    threads,
    token_price,
    voice_budget,
    weight_types,
    weights_memory,
)

EXPERIMENTS: Final[Mapping[str, Experiment]] = {
    module.EXPERIMENT.name: module.EXPERIMENT
    for module in (
        weights_memory,
        kv_bytes,
        roofline,
        batch_size,
        batching,
        padding,
        kv_allocation,
        prefix_cache,
        chunked_prefill,
        kv_types,
        weight_types,
        rounding,
        observers,
        distilled,
        speculation,
        passes,
        isa,
        threads,
        cold_start,
        moe,
        adapters,
        response_cache,
        semantic_cache,
        speech_detection,
        codecs,
        beams,
        recordings_together,
        voice_budget,
        token_price,
    )
}


def experiment_of(name: str) -> Experiment:
    """Return an experiment. Raises SettingsError, with all names, if there is none of this name."""
    if name not in EXPERIMENTS:
        raise SettingsError(
            f"there is no experiment {name!r}; experiments: {', '.join(EXPERIMENTS)}"
        )
    return EXPERIMENTS[name]
