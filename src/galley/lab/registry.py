"""The experiments, in the order of the page."""

from collections.abc import Mapping
from typing import Final

from galley.errors import SettingsError
from galley.lab.experiment import Experiment
from galley.lab.experiments import (
    batch_size,
    batching,
    chunked_prefill,
    kv_allocation,
    kv_bytes,
    padding,
    prefix_cache,
    roofline,
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
    )
}


def experiment_of(name: str) -> Experiment:
    """Return an experiment. Raises SettingsError, with all names, if there is none of this name."""
    if name not in EXPERIMENTS:
        raise SettingsError(
            f"there is no experiment {name!r}; experiments: {', '.join(EXPERIMENTS)}"
        )
    return EXPERIMENTS[name]
