"""Opens the disk tier of the prefix cache for an engine that is being built."""

import dataclasses
import hashlib
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from galley.engine.kv import KVCache
from galley.engine.loading import Loading
from galley.engine.prefix_files import PrefixFiles
from galley.engine.prefix_tier import PrefixTier
from galley.engine.prefix_writer import QUEUE_BYTES
from galley.errors import DISTRIBUTION, SettingsError
from galley.formats.model_files import files_digest
from galley.graph.program import Program
from galley.ops.executor import BlockAccess, Executor, ExecutorOptions

TIER_BYTES: Final = QUEUE_BYTES
"""Bytes of memory that the tier takes."""

_NOT_THE_VALUES: Final = (
    "device",
    "threads",
    "weight_cache",
    "pause",
    "experts",
    "expert_cache_bytes",
)
"""Options of an executor that change no bit of keys and values."""


def build_prefix_tier(
    loading: Loading,
    program: Program,
    options: ExecutorOptions,
    executor: Executor,
    kv: KVCache,
    isa: str,
) -> PrefixTier | None:
    """Return the tier that the settings request, or None.

    The model's files are read once for their digest, which is remembered.

    Raises:
        SettingsError: the blocks of the model or of the executor cannot be stored, or the folder cannot be
            written.
    """
    settings = loading.settings
    if not settings.prefix_cache_dir:
        return None
    setting = f"prefix_cache_dir is {settings.prefix_cache_dir!r}, but "
    if loading.model.speech is not None:
        raise SettingsError(
            f"{setting}{loading.name} is a speech model, whose prompts are audio; leave it out"
        )
    if program.states:
        raise SettingsError(
            f"{setting}{loading.name} has recurrent layers, whose states are not stored; leave it out"
        )
    if not isinstance(executor, BlockAccess):
        raise SettingsError(
            f"{setting}executor {loading.executor_name!r} cannot store its blocks; leave it out"
        )
    sizes = tuple(executor.block_bytes(g) for g in range(len(kv.groups)))
    if settings.prefix_cache_dir_bytes < 2 * sum(sizes):
        raise SettingsError(
            f"prefix_cache_dir_bytes is {settings.prefix_cache_dir_bytes}, but a block of {loading.name} "
            f"takes {sum(sizes)} bytes; set it to the size of many blocks"
        )
    try:
        files = PrefixFiles(
            Path(settings.prefix_cache_dir),
            _identity(loading, program, options, isa),
            kv_dtype=options.kv_dtype,
            block_bytes=sizes,
            most_bytes=settings.prefix_cache_dir_bytes,
        )
    except OSError as error:
        raise SettingsError(
            f"{setting}the folder cannot be used: {error.strerror or error}; choose another, "
            "or leave it out"
        ) from error
    return PrefixTier(files, executor, kv)


def _identity(loading: Loading, program: Program, options: ExecutorOptions, isa: str) -> bytes:
    """Return a digest of everything that a block's bits depend on, other than its tokens.

    It also covers what should make no difference, such as the version of the program: in doubt, blocks
    are computed.
    """
    from importlib import metadata  # slow to import, and needed with a prefix tier alone

    names = {one.name for one in dataclasses.fields(options)} - set(_NOT_THE_VALUES)
    version = ""
    with suppress(metadata.PackageNotFoundError):  # run from a source tree
        version = metadata.version(DISTRIBUTION)
    known = {
        "program": version,
        "files": files_digest(loading.folder).hex(),
        "executor": f"{loading.executor_name} {isa} {sys.byteorder}",
        "options": repr([(name, getattr(options, name)) for name in sorted(names)]),
        "context": loading.settings.max_model_len,
        "groups": repr(program.kv_groups),
        "layers": repr(program.kv),
    }
    return hashlib.blake2b(msgspec.json.encode(known), digest_size=16).digest()
