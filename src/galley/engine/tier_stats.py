"""What became of blocks outside of memory, in counts."""

from typing import Any, NamedTuple, Self

from galley.engine.block_server import BlockServer
from galley.engine.prefix_saver import PrefixSaver
from galley.engine.prefix_sources import FileSource, PeerSource


class TierStats(NamedTuple):
    """Sequences that wait for their prefixes, and counts with the names of EngineStats."""

    waiting: int = 0
    prefix_disk_hit_tokens: int = 0
    prefix_disk_read_bytes: int = 0
    prefix_disk_written_bytes: int = 0
    prefix_disk_dropped_blocks: int = 0
    prefix_disk_damaged_files: int = 0
    prefix_disk_bytes: int = 0
    kv_peer_hit_tokens: int = 0
    kv_fetches: int = 0
    kv_fetch_failures: int = 0
    kv_fetch_seconds: float = 0.0
    kv_fetched_blocks: int = 0
    kv_fetched_bytes: int = 0
    kv_missing_blocks: int = 0
    kv_sent_blocks: int = 0
    kv_sent_bytes: int = 0
    kv_send_failures: int = 0

    @property
    def counts(self) -> dict[str, Any]:
        """The fields of EngineStats that are known here alone."""
        counts = self._asdict()
        del counts["waiting"]
        return counts

    def with_files(self, files: FileSource, saver: PrefixSaver) -> Self:
        """Return it with the counts of the disk."""
        return self._replace(
            prefix_disk_hit_tokens=files.taken.hit_tokens,
            prefix_disk_read_bytes=files.taken.bytes,
            prefix_disk_written_bytes=saver.writer.written_bytes,
            prefix_disk_dropped_blocks=saver.dropped + saver.writer.dropped,
            prefix_disk_damaged_files=files.files.damaged,
            prefix_disk_bytes=files.files.bytes,
        )

    def with_peers(self, peers: PeerSource) -> Self:
        """Return it with the counts of what was fetched."""
        return self._replace(
            kv_peer_hit_tokens=peers.taken.hit_tokens,
            kv_fetches=peers.fetches,
            kv_fetch_failures=peers.failures,
            kv_fetch_seconds=peers.seconds,
            kv_fetched_blocks=peers.taken.blocks,
            kv_fetched_bytes=peers.taken.bytes,
            kv_missing_blocks=peers.missing_blocks,
        )

    def with_server(self, server: BlockServer) -> Self:
        """Return it with the counts of what was sent."""
        return self._replace(
            kv_sent_blocks=server.sent_blocks,
            kv_sent_bytes=server.sent_bytes,
            kv_send_failures=server.failures,
        )
