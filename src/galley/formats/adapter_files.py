"""Location and state of a LoRA adapter's files, for callers that read no tensors."""

import hashlib
from pathlib import Path
from typing import Final

from galley.errors import CheckpointError

CONFIG: Final = "adapter_config.json"
TENSORS: Final = "adapter_model.safetensors"


def adapter_digest(folder: Path) -> str:
    """Return a digest that changes when a file is written or replaced.

    It identifies the adapter with which keys and values were computed.

    Raises:
        CheckpointError: a file is missing.
    """
    digest = hashlib.blake2b(str(folder).encode(errors="surrogatepass"), digest_size=16)
    for name in (CONFIG, TENSORS):
        try:
            status = (folder / name).stat()
        except FileNotFoundError:
            if name == CONFIG:
                reason = "it does not exist; an adapter is a folder in PEFT's layout"
            else:
                reason = "it does not exist (adapter_model.bin, a pickle, is not supported)"
            raise CheckpointError(reason, file=str(folder / name)) from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise CheckpointError(f"cannot be read: {reason}", file=str(folder / name)) from error
        digest.update(f"{name}\0{status.st_size}\0{status.st_mtime_ns}\0{status.st_ino}\0".encode())
    return digest.hexdigest()
