"""The interface of checkpoint readers, whatever the format on disk."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from galley.formats.checkpoint import Checkpoint, has_safetensors
from galley.formats.ctranslate2 import CTranslate2Checkpoint
from galley.formats.ctranslate2_file import is_ctranslate2
from galley.formats.gguf import GGUFCheckpoint
from galley.formats.gguf_file import is_gguf
from galley.formats.weights import Weights
from galley.types import SamplingDefaults


class CheckpointReader(Protocol):
    """A checkpoint whose small parts have been read and whose tensors have not.

    :class:`galley.formats.checkpoint.Checkpoint` reads the Hugging Face layout (safetensors),
    :class:`galley.formats.gguf.GGUFCheckpoint` reads GGUF files, and
    :class:`galley.formats.ctranslate2.CTranslate2Checkpoint` reads the folders that faster-whisper uses.
    """

    @property
    def folder(self) -> Path:
        """Path of the checkpoint, for messages and for the cache of packed weights."""
        ...

    @property
    def config(self) -> Mapping[str, Any]:
        """The model's hyperparameters, with the field names of Hugging Face's ``config.json``."""
        ...

    @property
    def generation(self) -> Mapping[str, Any]:
        """Generation defaults, with field names of ``generation_config.json``; empty if there are none."""
        ...

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Tokens that end a text."""
        ...

    @property
    def defaults(self) -> SamplingDefaults:
        """Sampling parameters for requests that leave them out."""
        ...

    def check_token_ids(self, vocab_size: int) -> None:
        """Raise CheckpointError if an end-of-sequence id is not a token of the model."""
        ...

    def weights(self) -> Weights:
        """Return all tensors, typed, none of them read yet.

        Raises:
            CheckpointError: a file is missing or damaged.
        """
        ...

    def content_hash(self) -> str:
        """Return a hash of all the weights' bytes, which are read; it does not depend on their folder.

        Raises:
            CheckpointError: a weight file is missing.
        """
        ...

    def outline(self) -> str:
        """Return a hash of the weight files' names, sizes and headers.

        It differs only if :meth:`content_hash` does.

        Raises:
            CheckpointError: a weight file is missing or damaged.
        """
        ...

    def state(self) -> str:
        """Return a hash that changes whenever a weight file is written, replaced or moved here.

        Only headers are read.

        Raises:
            CheckpointError: a weight file is missing or damaged.
        """
        ...


def open_checkpoint(
    path: Path, *, exact: bool = False, keeps_floats: bool = False
) -> CheckpointReader:
    """Open the checkpoint at ``path``.

    Args:
        path: a folder in Hugging Face's layout or CTranslate2's, or a GGUF file.
        exact, keeps_floats: for a folder in Hugging Face's layout, see
            :func:`galley.formats.quantized.typed_weights`; a GGUF file's blocks are exact in any case.

    Raises:
        ModelNotFound, CheckpointError, UnsupportedModel: there is none, or it cannot be used.
    """
    if is_gguf(path):
        return GGUFCheckpoint.open(path)
    if not has_safetensors(path) and is_ctranslate2(path):
        return CTranslate2Checkpoint.open(path)
    return Checkpoint.open(path, exact=exact, keeps_floats=keeps_floats)
