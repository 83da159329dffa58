"""The KV cache's ledger: which request holds which blocks.

    request -> [hypothesis] -> [KV group] -> block ids of positions 0-15, 16-31, ...
                (1, or the      (1 for most
                 beams)          models)

A KV group is the set of layers that keep the same tokens.
"""

from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from galley.engine.block_watcher import BlockWatcher
from galley.engine.blocks import BlockPool
from galley.engine.kv_tables import Claim, Table, Tables
from galley.engine.states import StateCache
from galley.graph.program import KVGroup
from galley.types import BLOCK_TOKENS, blocks_for
from galley.types.block_hashes import BlockContent, HashChain, salt_hash

WHOLE_CONTEXT: Final = KVGroup()

_PLAIN: Final = salt_hash("")
"""Root of chains that tokens alone determine: no tenant's salt, no adapter, no encoder input."""


class KVCache:
    """Block tables by request id. Every change preserves the pool's ``free + cached + used == total``.

    Args:
        pool: provides the blocks.
        prefix_cache: whether requests share full blocks of equal prefixes.
        groups: the KV groups of the model. A group with a window releases blocks as the window moves.
        states: slots for states of recurrent layers, if the model has any.

    Attributes:
        queried_tokens, hit_tokens: tokens looked up in, and supplied by, the prefix cache so far.
        takes_back: whether tokens can be rolled back; a recurrent state cannot be.
    """

    def __init__(
        self,
        pool: BlockPool,
        *,
        prefix_cache: bool,
        groups: Sequence[KVGroup] = (WHOLE_CONTEXT,),
        states: StateCache | None = None,
    ) -> None:
        self.pool = pool
        self.groups = tuple(groups)
        self.states = states
        self._sharing = prefix_cache
        self._slides = any(group.window for group in groups)
        self.takes_back = states is None
        self._tables: dict[str, Tables] = {}
        self._chains: dict[str, HashChain] = {}
        self._copies: list[tuple[int, int]] = []
        self._watcher: BlockWatcher | None = None
        self._contents: dict[bytes, BlockContent] | None = None
        self.queried_tokens = 0
        self.hit_tokens = 0

    def record_contents(self) -> None:
        """Record the contents of blocks that are registered from now on, for :meth:`take_contents`."""
        self._contents = {}

    def take_contents(self) -> dict[bytes, BlockContent]:
        """Return the contents recorded since the last call, by the blocks' keys."""
        if self._contents is None:
            return {}
        contents, self._contents = self._contents, {}
        return contents

    def watch(self, watcher: BlockWatcher) -> None:
        """Report all later changes of shareable blocks."""
        self._watcher = watcher
        self.pool.on_evict(watcher.evicted)

    def lookup(
        self, request_id: str, tokens: Sequence[int], *, root: bytes, reusable: int
    ) -> tuple[list[bytes], int]:
        """Return the hashes of the blocks that a request could share, and how many of them are cached.

        Args: as those of :meth:`claim`.
        """
        if not self._sharing:
            return [], 0
        chain = self._chains.setdefault(request_id, HashChain(root))
        blocks = reusable // BLOCK_TOKENS
        hashes = chain.upto(tokens, blocks)[:blocks]
        return hashes, len(self._find(hashes)[0])

    def claim(self, request_id: str, tokens: Sequence[int], *, root: bytes, reusable: int) -> Claim:
        """Return what :meth:`open` would take to make room for all ``tokens``.

        Args:
            request_id: a request without open tables.
            tokens: the tokens known so far.
            root: hash of everything else that keys and values depend on (tenant, encoder input).
            reusable: number of leading tokens that need not be recomputed if their keys and values are
                cached.
        """
        assert request_id not in self._tables
        chain = self._chains.setdefault(request_id, HashChain(root))
        found: tuple[list[int | None], ...] = tuple([] for _ in self.groups)
        if self._sharing:
            blocks = reusable // BLOCK_TOKENS
            found = self._find(chain.upto(tokens, blocks)[:blocks])
        fresh = tuple(blocks_for(len(tokens)) - len(blocks) for blocks in found)
        state = None
        if self.states is not None and found[0]:
            state = self.states.find(chain.hashes[len(found[0]) - 1])
        return Claim(len(found[0]) * BLOCK_TOKENS, found, fresh, state)

    def _find(self, hashes: Sequence[bytes]) -> tuple[list[int | None], ...]:
        """Find each group's blocks of the longest prefix that all groups have, as far as windows reach.

        With recurrent layers, the prefix ends where a state was kept.
        """
        known = [
            [self.pool.find(block_key(link, g)) for link in hashes] for g in range(len(self.groups))
        ]
        length = len(hashes)
        while True:
            before = length
            for group, blocks in zip(self.groups, known, strict=True):
                length = _usable_prefix(blocks[:length], group)
            if self.states is not None:
                length = self.states.longest(hashes[:length])
            if length == before:
                break
        return tuple(
            [
                None if i < group.first_block(length * BLOCK_TOKENS) else blocks[i]
                for i in range(length)
            ]
            for group, blocks in zip(self.groups, known, strict=True)
        )

    def has_room(self, claim: Claim, more: int = 0, shared: Sequence[int] = ()) -> bool:
        """Return whether everything that a claim needs is available.

        Args:
            claim: the claim to be opened.
            more: number of further blocks to be taken.
            shared: other blocks that get one more reference.
        """
        if self.states is not None and not self.states.can_open(claim.state):
            return False
        return self.pool.can_take(sum(claim.fresh) + more, [*claim.shared, *shared])

    def reserve(self, claim: Claim, more: int = 0, shared: Sequence[int] = ()) -> bool:
        """Add references to the claim's blocks and ``shared`` ones; return False if there is no room."""
        if not self.has_room(claim, more, shared):
            return False
        return self.pool.reserve(sum(claim.fresh) + more, [*claim.shared, *shared])

    def open(self, request_id: str, claim: Claim) -> None:
        """Create the request's tables from ``claim.shared``, already referenced, and the pool."""
        if self.states is not None:
            self.states.open(request_id, claim.state)
        tables, firsts = [], []
        for found, fresh in zip(claim.found, claim.fresh, strict=True):
            firsts.append(sum(block is None for block in found))
            held = [block for block in found if block is not None]
            held += [self.pool.take() for _ in range(fresh)]
            tables.append(array("q", held[:1] * firsts[-1] + held))
        self._tables[request_id] = Tables([tuple(tables)], firsts, len(claim.found[0]))

    def count_lookup(self, queried: int, hit: int) -> None:
        """Record that an admitted request looked up ``queried`` tokens and found ``hit`` of them."""
        if self._sharing:
            self.queried_tokens += queried
            self.hit_tokens += hit

    def allocate(self, request_id: str, tokens: int) -> bool:
        """Make room for ``tokens`` tokens in total; return False and take nothing if there is no room.

        The hypotheses of a beam search grow together, by one token: blocks that several of them would
        write are copied first.
        """
        tables = self._tables[request_id]
        missing = [
            (table, blocks_for(tokens) - len(table))
            for hypothesis in tables.hypotheses
            for table in hypothesis
        ]
        written = self._written(tables, tokens) if len(tables.hypotheses) > 1 else []
        writers = Counter(table[i] for table, i in written)
        fresh = sum(count for _, count in missing if count > 0)
        if not self.pool.can_take(fresh + len(written) - len(writers)):
            return False
        for table, count in missing:
            table.extend(self.pool.take() for _ in range(count))
        for table, i in written:
            block = table[i]
            if writers[block] > 1:
                writers[block] -= 1
                self.pool.release(block)
                table[i] = self.pool.take()
                self._copies.append((block, table[i]))
        return True

    def _written(self, tables: Tables, tokens: int) -> list[tuple[Table, int]]:
        """Return the existing entries of hypotheses' tables that growing to ``tokens`` tokens writes."""
        return [
            (table, len(table) - 1)
            for hypothesis in tables.hypotheses
            for table in hypothesis
            if blocks_for(tokens) <= len(table)
        ]

    def slide(self, request_id: str, computed: int) -> None:
        """Release the blocks that no row after the first ``computed`` tokens can see."""
        if not self._slides:
            return
        tables = self._tables[request_id]
        for g, group in enumerate(self.groups):
            first = group.first_block(computed)
            for hypothesis in tables.hypotheses if first > tables.first[g] else ():
                table = hypothesis[g]
                for i in range(tables.first[g], first):
                    self.pool.release(table[i])
                # Executors expect a block at each index, and ignore its content.
                table[:first] = array("q", [table[min(first, len(table) - 1)]]) * first
            tables.first[g] = max(first, tables.first[g])

    def truncate(self, request_id: str, tokens: int) -> None:
        """Release the blocks beyond the first ``tokens`` tokens, which held rejected draft tokens."""
        for hypothesis in self._tables[request_id].hypotheses:
            for table in hypothesis:
                while len(table) > blocks_for(tokens):
                    self.pool.release(table.pop())

    def fork(self, request_id: str, parents: Sequence[int]) -> None:
        """Let hypothesis i continue from hypothesis ``parents[i]``, sharing its blocks."""
        tables = self._tables[request_id]
        before = tables.hypotheses
        after = [tuple(table[:] for table in before[parent]) for parent in parents]
        for block in _held(after, tables.first):
            self.pool.share(block)
        tables.hypotheses = after
        for block in _held(before, tables.first):
            self.pool.release(block)

    def take_copies(self) -> list[tuple[int, int]]:
        """Return and clear the (from, to) blocks to be copied before this step writes any."""
        copies, self._copies = self._copies, []
        return copies

    def register(self, request_id: str, tokens: Sequence[int], computed: int) -> None:
        """Share the full blocks of the first ``computed`` of ``tokens``, cached once this step has run.

        All of these tokens are final: a draft token is never registered.
        """
        if not self._sharing:
            return
        tables = self._tables[request_id]
        full = computed // BLOCK_TOKENS
        if full <= tables.registered:
            return
        chain = self._chains[request_id]
        hashes = chain.upto(tokens, full)
        for g, table in enumerate(tables.hypotheses[0]):
            for i in range(max(tables.registered, tables.first[g]), full):
                key = block_key(hashes[i], g)
                if not self.pool.register(key, table[i]):
                    continue
                if self._watcher is not None:
                    self._watcher.registered(key, table[i], g, chain.root)
                if self._contents is not None and not g and chain.root == _PLAIN:
                    begin = i * BLOCK_TOKENS
                    self._contents[key] = BlockContent(
                        key,
                        hashes[i - 1] if i else None,
                        list(tokens[begin : begin + BLOCK_TOKENS]),
                    )
        tables.registered = full

    def settled(self, request_id: str) -> int:
        """Return how many tokens fit before a block is needed, can be shared, or may leave a window."""
        tables = self._tables[request_id]
        room = BLOCK_TOKENS * min(map(len, tables.hypotheses[0]))
        return min(room, BLOCK_TOKENS * (tables.registered + 1) - 1) if self._sharing else room

    def keep(self, request_id: str, seconds: float, tenant: str = "") -> None:
        """Evict the request's shareable blocks only after others, for so long from now.

        Args:
            request_id: a running request.
            seconds: for how long.
            tenant: whose blocks they are; tenants share the blocks that are kept.
        """
        tables, links = self._tables[request_id], self._chains[request_id].hashes
        keys = [
            block_key(links[i], g)
            for g in range(len(self.groups))
            for i in range(tables.first[g], tables.registered)
        ]
        self.pool.keep(keys, seconds, tenant)
        if self.states is not None:
            self.states.pool.keep(links, seconds, tenant)
        if self._watcher is not None:
            self._watcher.kept(keys, seconds)

    def close(self, request_id: str) -> None:
        """Release the tables; shareable blocks stay cached, and the tail of a prefix is evicted first."""
        tables = self._tables.pop(request_id)
        if self.states is not None:
            self.states.close(request_id)
        for hypothesis in reversed(tables.hypotheses):
            # A prefix is usable only if the blocks of all groups are cached.
            for i in reversed(range(max(map(len, hypothesis)))):
                for table, first in zip(hypothesis, tables.first, strict=True):
                    if first <= i < len(table):
                        self.pool.release(table[i])

    def forget(self, request_id: str) -> list[bytes]:
        """Drop a finished request, which no longer holds tables, and return the keys of its blocks."""
        assert request_id not in self._tables
        chain = self._chains.pop(request_id, None)
        if chain is None:
            return []
        return [block_key(link, g) for g in range(len(self.groups)) for link in chain.hashes]

    def advance_state(
        self, request_id: str, begin: int, end: int, tokens: Sequence[int], *, shares: bool
    ) -> Table:
        """Advance the recurrent state: see :meth:`StateCache.advance`.

        ``shares`` lets other requests continue from the kept states.
        """
        assert self.states is not None
        chain = self._chains[request_id] if shares and self._sharing else None
        return self.states.advance(request_id, begin, end, chain, tokens)

    def forget_all(self) -> None:
        """Make all cached content unreachable."""
        self.pool.forget_all()
        if self._watcher is not None:
            self._watcher.forgotten()
        if self.states is not None:
            self.states.pool.forget_all()

    def tables(self, request_id: str) -> list[tuple[Table, ...]]:
        """Return each hypothesis' current block table in each KV group."""
        return self._tables[request_id].hypotheses

    def held(self) -> Iterator[Sequence[int]]:
        """Yield the blocks of each table of each request."""
        for tables in self._tables.values():
            for hypothesis in tables.hypotheses:
                for table, first in zip(hypothesis, tables.first, strict=True):
                    yield table[first:]


def block_key(link: bytes, group: int) -> bytes:
    """Return the key under which a block with that hash is found in a group."""
    return link + bytes([group]) if group else link


def _usable_prefix(blocks: Sequence[int | None], group: KVGroup) -> int:
    """Return the longest prefix, in blocks, whose tail is cached as far as the group's window reaches."""
    best = run = 0
    for i, block in enumerate(blocks):
        run = 0 if block is None else run + 1
        if run and run >= i + 1 - group.first_block((i + 1) * BLOCK_TOKENS):
            best = i + 1
    return best


def _held(hypotheses: Sequence[tuple[Table, ...]], first: Sequence[int]) -> Iterator[int]:
    for hypothesis in hypotheses:
        for table, begin in zip(hypothesis, first, strict=True):
            yield from table[begin:]
