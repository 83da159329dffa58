"""Builds what extends the prefix cache beyond memory: blocks on disk, and blocks of peers."""

import dataclasses
import hashlib
import logging
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import msgspec

from galley.engine.block_form import BlockForm
from galley.engine.block_offers import BlockOffers
from galley.engine.block_server import BlockServer
from galley.engine.block_transport import SocketTransport
from galley.engine.kv import KVCache
from galley.engine.loading import Loading
from galley.engine.prefix_files import PrefixFiles
from galley.engine.prefix_sources import PeerSource
from galley.engine.prefix_tier import PrefixTier
from galley.engine.prefix_writer import QUEUE_BYTES
from galley.errors import DISTRIBUTION, SettingsError
from galley.formats.model_files import files_digest
from galley.graph.program import Program
from galley.links.access import UNENCRYPTED, read_access
from galley.ops.executor import BlockAccess, Executor, ExecutorOptions
from galley.settings.engine import EngineSettings
from galley.types.transfers import TransferPlan

log: Final = logging.getLogger("galley.transfers")

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


@dataclass(frozen=True)
class TierBuilder:
    """The description of an engine's blocks from which its tier is built.

    Attributes:
        name: the model's name for display.
        folder: the checkpoint.
        kv: the KV cache.
        kv_dtype: type of keys and values.
        executor: the executor, whose name is ``executor_name``.
        identity: what a block's bits depend on, other than its tokens and the model's files.
        refusal: why blocks of this model cannot leave memory; empty: they can.
    """

    name: str
    folder: Path
    kv: KVCache
    kv_dtype: str
    executor: Executor
    identity: dict[str, Any]
    refusal: str

    @classmethod
    def of(
        cls,
        loading: Loading,
        program: Program,
        options: ExecutorOptions,
        executor: Executor,
        kv: KVCache,
        isa: str,
    ) -> "TierBuilder":
        """Return the builder of an engine that is being loaded."""
        refusal = ""
        if loading.model.speech is not None:
            refusal = f"{loading.name} is a speech model, whose prompts are audio"
        elif program.states:
            refusal = f"{loading.name} has recurrent layers, whose states are not stored"
        elif not isinstance(executor, BlockAccess):
            refusal = f"executor {loading.executor_name!r} cannot store its blocks"
        identity = _identity(loading, program, options, isa)
        return cls(loading.name, loading.folder, kv, options.kv_dtype, executor, identity, refusal)

    @cached_property
    def form(self) -> BlockForm:
        """The form of the model's blocks. The model's files are read once for it."""
        known = {**self.identity, "files": files_digest(self.folder).hex()}
        digest = hashlib.blake2b(msgspec.json.encode(known, order="sorted"), digest_size=16)
        sizes = [self._blocks.block_bytes(g) for g in range(len(self.kv.groups))]
        return BlockForm(digest.digest(), kv_dtype=self.kv_dtype, block_bytes=sizes)

    @property
    def _blocks(self) -> BlockAccess:
        assert isinstance(self.executor, BlockAccess), self.refusal
        return self.executor

    def on_disk(self, settings: EngineSettings) -> PrefixTier | None:
        """Return the tier with the files that the settings request, or None.

        Raises:
            SettingsError: the model's blocks cannot be stored, or the folder cannot be written.
        """
        if not settings.prefix_cache_dir:
            return None
        setting = f"prefix_cache_dir is {settings.prefix_cache_dir!r}, but "
        if self.refusal:
            raise SettingsError(f"{setting}{self.refusal}; leave it out")
        size = sum(self._blocks.block_bytes(g) for g in range(len(self.kv.groups)))
        if settings.prefix_cache_dir_bytes < 2 * size:
            raise SettingsError(
                f"prefix_cache_dir_bytes is {settings.prefix_cache_dir_bytes}, but a block of {self.name} "
                f"takes {size} bytes; set it to the size of many blocks"
            )
        folder, most = Path(settings.prefix_cache_dir), settings.prefix_cache_dir_bytes
        try:
            files = PrefixFiles(folder, self.form, most_bytes=most)
        except OSError as error:
            raise SettingsError(
                f"{setting}the folder cannot be used: {error.strerror or error}; choose another, "
                "or leave it out"
            ) from error
        return PrefixTier(self._blocks, self.kv, files)

    def with_peers(
        self, tier: PrefixTier | None, plan: TransferPlan, wake: Callable[[], None]
    ) -> tuple[PrefixTier, int]:
        """Have the engine exchange blocks with peers.

        Args:
            tier: the tier that there is already.
            plan: how blocks are exchanged.
            wake: has the engine's thread make a step soon, also when it has no work.

        Returns:
            The tier, and the port at which it offers blocks; 0: it does not.

        Raises:
            SettingsError: the model's blocks cannot leave memory, or an address or a file cannot be used.
        """
        setting = f"role is {plan.role}, but "
        if self.refusal:
            raise SettingsError(f"{setting}{self.refusal}; leave it out")
        access = read_access(plan)
        tier = tier or PrefixTier(self._blocks, self.kv)
        if plan.fetches:
            tier.fetch_from(PeerSource(SocketTransport(self.form, access), plan.seconds))
        if not plan.offers:
            return tier, 0
        offers = BlockOffers(self.kv.pool, tier.known, wake)
        server = BlockServer(access, self.form, self._blocks, offers, tier.files)
        try:
            port = server.listen(plan.host, plan.port)
        except OSError as error:
            raise SettingsError(
                f"kv_transfer: {plan.host}:{plan.port} cannot be used: {error.strerror or error}"
            ) from error
        if access.as_replica is None and not plan.is_local:
            log.warning(UNENCRYPTED, f"kv_transfer {plan.host}")
        tier.offer(offers, server)
        return tier, port


def _identity(
    loading: Loading, program: Program, options: ExecutorOptions, isa: str
) -> dict[str, Any]:
    """Return everything that a block's bits depend on, other than its tokens and the model's files.

    It also covers what should make no difference, such as the version of the program: in doubt, blocks
    are computed.
    """
    from importlib import metadata  # slow to import, and needed with a prefix tier alone

    names = {one.name for one in dataclasses.fields(options)} - set(_NOT_THE_VALUES)
    version = ""
    with suppress(metadata.PackageNotFoundError):  # run from a source tree
        version = metadata.version(DISTRIBUTION)
    return {
        "program": version,
        "executor": f"{loading.executor_name} {isa} {sys.byteorder}",
        "options": repr([(name, getattr(options, name)) for name in sorted(names)]),
        "context": loading.settings.max_model_len,
        "groups": repr(program.kv_groups),
        "layers": repr(program.kv),
    }
