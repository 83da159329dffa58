"""Traces a model's plain-Python description into a :class:`Program`, once, at load."""

from collections.abc import Callable
from dataclasses import dataclass, field

from galley.graph.program import KVLayout, Op, Program


@dataclass(frozen=True, slots=True)
class Buffer:
    """A ``[tokens, width]`` value during tracing."""

    id: int
    width: int


@dataclass(slots=True)
class Tracer:
    """The op vocabulary as methods; each call appends one op and returns its output."""

    ops: list[Op] = field(default_factory=list)
    kv: list[KVLayout] = field(default_factory=list)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def _emit(
        self,
        name: str,
        inputs: tuple[Buffer, ...],
        width: int,
        weights: dict[str, tuple[str, ...]] | None = None,
        **attrs: object,
    ) -> Buffer:
        buffer = Buffer(len(self.ops), width)
        ids = tuple(b.id for b in inputs)
        self.ops.append(Op(name, ids, (buffer.id,), (width,), weights or {}, attrs))
        return buffer

    def _weight(self, name: str, *shape: int) -> tuple[str, ...]:
        assert self.shapes.setdefault(name, shape) == shape, name
        return (name,)

    def embed(self, weight: str, *, vocab: int, width: int) -> Buffer:
        """Token ids of the batch -> their rows."""
        return self._emit("embed", (), width, {"weight": self._weight(weight, vocab, width)})

    def linear(self, x: Buffer, weight: str, width: int, *, bias: str | None = None) -> Buffer:
        """``bias`` is a tensor name or None."""
        weights = {"weight": self._weight(weight, width, x.width)}
        if bias is not None:
            weights["bias"] = self._weight(bias, width)
        return self._emit("linear", (x,), width, weights)

    def rms_norm(
        self, x: Buffer, weight: str, *, eps: float, head_dim: int | None = None
    ) -> Buffer:
        """Over the whole row, or over each head when ``head_dim`` is given."""
        group = head_dim or x.width
        weights = {"weight": self._weight(weight, group)}
        return self._emit("rms_norm", (x,), x.width, weights, eps=eps, head_dim=group)

    def rope(
        self, x: Buffer, *, head_dim: int, inv_freq: tuple[float, ...], scale: float
    ) -> Buffer:
        """``inv_freq`` has head_dim / 2 angles per position."""
        assert 2 * len(inv_freq) == head_dim
        return self._emit("rope", (x,), x.width, head_dim=head_dim, inv_freq=inv_freq, scale=scale)

    def attention(
        self, q: Buffer, k: Buffer, v: Buffer, *, head_dim: int, scale: float, window: int
    ) -> Buffer:
        """Adds a KV layer. ``window`` 0 means the whole context."""
        layer, kv_heads, heads = len(self.kv), k.width // head_dim, q.width // head_dim
        assert heads % kv_heads == 0
        self.kv.append(KVLayout(kv_heads, head_dim))
        return self._emit(
            "attention",
            (q, k, v),
            q.width,
            layer=layer,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            scale=scale,
            window=window,
        )

    def silu_mul(self, a: Buffer, b: Buffer) -> Buffer:
        """silu(a) * b."""
        return self._emit("silu_mul", (a, b), a.width)

    def add(self, a: Buffer, b: Buffer) -> Buffer:
        """a + b."""
        assert a.width == b.width
        return self._emit("add", (a, b), a.width)

    def select_rows(self, x: Buffer) -> Buffer:
        """Only the rows whose logits the batch wants."""
        return self._emit("select_rows", (x,), x.width)


def trace(describe: Callable[[Tracer], Buffer], *, max_positions: int) -> Program:
    """Run ``describe`` once; the buffer it returns holds the logits."""
    tracer = Tracer()
    logits = describe(tracer)
    assert logits.id == len(tracer.ops) - 1
    return Program(
        ops=tuple(tracer.ops),
        kv=tuple(tracer.kv),
        shapes=tracer.shapes,
        vocab_size=logits.width,
        max_positions=max_positions,
    )
