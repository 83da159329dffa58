"""What a reader of checkpoints gives, whatever the format on disk."""

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
    :class:`galley.formats.gguf.GGUFCheckpoint` GGUF files,
    :class:`galley.formats.ctranslate2.CTranslate2Checkpoint` the folders that faster-whisper takes.
    """

    @property
    def folder(self) -> Path:
        """Where the checkpoint is, for messages and for the cache of packed weights."""
        ...

    @property
    def config(self) -> Mapping[str, Any]:
        """The model's hyperparameters, in the words of Hugging Face's ``config.json``."""
        ...

    @property
    def generation(self) -> Mapping[str, Any]:
        """Defaults of generation, in the words of ``generation_config.json``; empty if there are none."""
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
        """Raises CheckpointError if an end-of-sequence id is no token of the model."""
        ...

    def weights(self) -> Weights:
        """All tensors, typed, none of them read yet.

        Raises:
            CheckpointError: a file is missing or damaged.
        """
        ...

    def content_hash(self) -> str:
        """Hash of all the weights' bytes, the same wherever a copy lies. Reads them.

        Raises:
            CheckpointError: a weight file is missing.
        """
        ...

    def outline(self) -> str:
        """Hash of the weight files' names, sizes and headers: differs only if :meth:`content_hash` does.

        Raises:
            CheckpointError: a weight file is missing or damaged.
        """
        ...

    def state(self) -> str:
        """Hash that changes whenever a weight file is written, replaced or moved here. Reads headers alone.

        Raises:
            CheckpointError: a weight file is missing or damaged.
        """
        ...


def open_checkpoint(path: Path, *, exact: bool = False) -> CheckpointReader:
    """The reader for the checkpoint at ``path``: a folder in Hugging Face's layout or CTranslate2's, or a
    GGUF file.

    Args:
        exact: of a folder, see :func:`galley.formats.quantized.typed_weights`; a GGUF file's blocks are
            exact anyway.

    Raises:
        ModelNotFound, CheckpointError, UnsupportedModel: there is none, or it cannot be used.
    """
    if is_gguf(path):
        return GGUFCheckpoint.open(path)
    if not has_safetensors(path) and is_ctranslate2(path):
        return CTranslate2Checkpoint.open(path)
    return Checkpoint.open(path, exact=exact)
