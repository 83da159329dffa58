"""What became of blocks outside of memory, in counts."""

from typing import NamedTuple, Self

from galley.engine.block_server import BlockServer
from galley.engine.prefix_saver import PrefixSaver
from galley.engine.prefix_sources import FileSource, PeerSource


class TierStats(NamedTuple):
    """Counts so far, sequences ``waiting`` for prefixes, and the ``bytes`` of the folder's files."""

    waiting: int = 0
    hit_tokens: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    dropped_blocks: int = 0
    damaged_files: int = 0
    bytes: int = 0
    peer_hit_tokens: int = 0
    fetches: int = 0
    fetch_failures: int = 0
    fetch_seconds: float = 0.0
    fetched_blocks: int = 0
    fetched_bytes: int = 0
    missing_blocks: int = 0
    sent_blocks: int = 0
    sent_bytes: int = 0
    send_failures: int = 0

    def with_files(self, files: FileSource, saver: PrefixSaver) -> Self:
        """Return it with the counts of the disk."""
        return self._replace(
            hit_tokens=files.taken.hit_tokens,
            read_bytes=files.taken.bytes,
            written_bytes=saver.writer.written_bytes,
            dropped_blocks=saver.dropped + saver.writer.dropped,
            damaged_files=files.files.damaged,
            bytes=files.files.bytes,
        )

    def with_peers(self, peers: PeerSource) -> Self:
        """Return it with the counts of what was fetched."""
        return self._replace(
            peer_hit_tokens=peers.taken.hit_tokens,
            fetches=peers.fetches,
            fetch_failures=peers.failures,
            fetch_seconds=peers.seconds,
            fetched_blocks=peers.taken.blocks,
            fetched_bytes=peers.taken.bytes,
            missing_blocks=peers.missing_blocks,
        )

    def with_server(self, server: BlockServer) -> Self:
        """Return it with the counts of what was sent."""
        return self._replace(
            sent_blocks=server.sent_blocks,
            sent_bytes=server.sent_bytes,
            send_failures=server.failures,
        )
