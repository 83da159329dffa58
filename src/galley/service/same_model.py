"""Whether two engines serve the same model."""

from galley.errors import ModelError
from galley.types.model_info import ModelInfo


def check_same(ours: ModelInfo, info: ModelInfo) -> None:
    """Raise ModelError if an engine serves another model than the other replicas.

    Args:
        ours: the description of the model by the other replicas.
        info: the engine's.
    """
    for what in ("family", "tasks", "speech", "vectors", "tensors"):
        if getattr(info, what) != getattr(ours, what):
            raise ModelError(
                f"the replica serves another model: {what} is {getattr(info, what)!r}, not "
                f"{getattr(ours, what)!r}"
            )
    if ours.text is not None and info.text is not None:
        for what in ("vocab_size", "eos_token_ids", "grammars"):
            if getattr(info.text, what) != getattr(ours.text, what):
                raise ModelError(f"the replica serves another model: {what} differs")
        if info.text.max_model_len < ours.text.max_model_len:
            raise ModelError(
                f"the replica's context of {info.text.max_model_len} tokens is shorter than that of "
                f"the others, {ours.text.max_model_len}"
            )
