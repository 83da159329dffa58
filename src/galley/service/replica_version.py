"""The version of what a replica serves, by which continued texts are the same."""

import hashlib

import msgspec

from galley.types.model_info import ModelInfo


def version_of(contents: str, info: ModelInfo) -> str:
    """Return a digest of what a text depends on: files and number formats, kernels included.

    Args:
        contents: digest of the checkpoint's files.
        info: the engine's description of the model.
    """
    formats = None
    if info.program is not None:
        program = info.program
        formats = (program.dtype, program.weight_dtype, program.activations, program.kv_dtype)
    isa = "" if info.ledger is None else info.ledger.isa
    parts = (contents, info.family, info.executor, isa, formats)
    return hashlib.blake2b(msgspec.msgpack.encode(parts), digest_size=8).hexdigest()
