"""Trace a model's plain-Python description into a :class:`Program`, once, at load."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from galley.graph.program import KVLayout, Op, Program, StateLayout


@dataclass(frozen=True, slots=True)
class Buffer:
    """A ``[rows, width]`` value during tracing."""

    id: int
    width: int


class ExpertNames(NamedTuple):
    """An expert's tensors: ``gate`` and ``up`` [width, hidden], ``down`` [hidden, width]; or the biases."""

    gate: str
    up: str
    down: str


@dataclass(slots=True)
class Tracer:
    """The op vocabulary as methods; each call appends one op and returns its output."""

    ops: list[Op] = field(default_factory=list)
    kv: list[KVLayout] = field(default_factory=list)
    states: list[StateLayout] = field(default_factory=list)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    _buffers: int = 0

    def _emit(
        self,
        name: str,
        inputs: tuple[Buffer, ...],
        width: int,
        weights: dict[str, tuple[str, ...]] | None = None,
        /,
        **attrs: object,
    ) -> Buffer:
        buffer = Buffer(self._buffers, width)
        self._buffers += 1
        ids = tuple(b.id for b in inputs)
        self.ops.append(Op(name, ids, (buffer.id,), (width,), weights or {}, attrs))
        return buffer

    def _weight(self, name: str, *shape: int) -> tuple[str, ...]:
        assert self.shapes.setdefault(name, shape) == shape, name
        return (name,)

    def embed(self, weight: str, *, vocab: int, width: int) -> Buffer:
        """Look up the embedding rows of the batch's token ids."""
        return self._emit("embed", (), width, {"weight": self._weight(weight, vocab, width)})

    def embed_positions(self, weight: str, *, positions: int, width: int, first: int = 0) -> Buffer:
        """Look up positions in a sequence or encoder input; position 0 has row ``first``."""
        weights = {"weight": self._weight(weight, positions, width)}
        return self._emit("embed_positions", (), width, weights, first=first)

    def embed_types(self, weight: str, *, types: int, width: int) -> Buffer:
        """Look up the embedding rows of the types of the batch's tokens."""
        weights = {"weight": self._weight(weight, types, width)}
        return self._emit("embed_types", (), width, weights)

    def features(self, mels: int) -> Buffer:
        """Read the frames of the encoder inputs. This is the first op of an encoder."""
        return self._emit("features", (), mels)

    def conv1d(
        self, x: Buffer, weight: str, width: int, *, bias: str, size: int, stride: int = 1
    ) -> Buffer:
        """Convolve the rows of each encoder input, zero-padded, to ceil(rows / stride) rows."""
        assert size % 2 == 1
        around = self._emit(
            "im2col", (x,), x.width * size, channels=x.width, size=size, stride=stride
        )
        weights = {
            "weight": self._weight(weight, width, x.width, size),
            "bias": self._weight(bias, width),
        }
        return self._emit("linear", (around,), width, weights)

    def linear(self, x: Buffer, weight: str, width: int, *, bias: str | None = None) -> Buffer:
        """Multiply by a matrix; ``bias`` is a tensor name or None."""
        weights = {"weight": self._weight(weight, width, x.width)}
        if bias is not None:
            weights["bias"] = self._weight(bias, width)
        return self._emit("linear", (x,), width, weights)

    def rms_norm(
        self,
        x: Buffer,
        weight: str | None,
        *,
        eps: float,
        head_dim: int | None = None,
        offset: float = 0.0,
    ) -> Buffer:
        """Normalize the row, or each head if ``head_dim`` is given; the weight gets ``offset`` added."""
        group = head_dim or x.width
        weights = {} if weight is None else {"weight": self._weight(weight, group)}
        attrs = {"eps": eps, "head_dim": group, "offset": offset}
        return self._emit("rms_norm", (x,), x.width, weights, **attrs)

    def layer_norm(
        self, x: Buffer, name: str, *, eps: float, bias: bool = True, head_dim: int | None = None
    ) -> Buffer:
        """Normalize the whole row, or each head if ``head_dim`` is given.

        ``name`` has a ``.weight``, and a ``.bias`` if ``bias`` is set; for heads, their shape is
        [heads, head_dim].
        """
        shape = (x.width,) if head_dim is None else (x.width // head_dim, head_dim)
        roles = ("weight", "bias") if bias else ("weight",)
        weights = {role: self._weight(f"{name}.{role}", *shape) for role in roles}
        return self._emit("layer_norm", (x,), x.width, weights, eps=eps, head_dim=shape[-1])

    def rope(
        self,
        x: Buffer,
        *,
        head_dim: int,
        inv_freq: tuple[float, ...],
        scale: float,
        adjacent: bool = False,
    ) -> Buffer:
        """Rotate pairs of columns, by ``inv_freq`` radians per position; at most head_dim / 2 pairs.

        With ``adjacent``, a pair is two adjacent columns, instead of one column of each half.
        """
        assert 0 < 2 * len(inv_freq) <= head_dim
        attrs = {"inv_freq": inv_freq, "scale": scale, "adjacent": adjacent}
        return self._emit("rope", (x,), x.width, head_dim=head_dim, **attrs)

    def scale_queries_by_position(self, x: Buffer, *, interval: int, factor: float) -> Buffer:
        """Scale a row at position p by 1 + factor * log(1 + floor((p + 1) / interval))."""
        return self._emit(
            "scale_queries_by_position", (x,), x.width, interval=interval, factor=factor
        )

    def attention(
        self,
        q: Buffer,
        k: Buffer,
        v: Buffer,
        *,
        key_dim: int,
        scale: float,
        window: int,
        chunked: bool = False,
        cap: float = 0.0,
        sinks: str | None = None,
    ) -> Buffer:
        """Attend to the context, in a new KV layer.

        ``window`` 0 means the whole context, ``cap`` 0 means uncapped scores. A head of q and of k has
        ``key_dim`` columns; v has as many heads as k, of any width. If k has one head and v is its first
        columns, taken by :meth:`columns`, the cache stores them only once. ``sinks`` is the name of a
        tensor [heads], or None.
        """
        layer, kv = len(self.kv), _kv_layout(k, v, key_dim)
        shared = kv.kv_heads == 1 and self._begins(v, k)
        self.kv.append(dataclasses.replace(kv, window=window, chunked=chunked, shared=shared))
        width, heads = _heads(q, kv)
        reach = {"window": window, "chunked": chunked}
        attrs = {"layer": layer, **heads, "scale": scale, **reach, "cap": cap}
        weights = {} if sinks is None else {"sinks": self._weight(sinks, heads["heads"])}
        return self._emit("attention", (q, k, v), width, weights, **attrs)

    def _begins(self, part: Buffer, x: Buffer) -> bool:
        """Return whether ``part`` is a view of the first columns of x."""
        writer = next(op for op in reversed(self.ops) if part.id in op.outputs)
        return writer.name == "columns" and writer.inputs == (x.id,) and not writer.attrs["start"]

    def encoder_attention(
        self,
        q: Buffer,
        k: Buffer,
        v: Buffer,
        *,
        key_dim: int,
        scale: float,
        before: int = -1,
        after: int = -1,
    ) -> Buffer:
        """Attend to rows of the same encoder input, up to ``before`` and ``after`` a row; -1 means all.

        Widths are as in :meth:`attention`.
        """
        width, heads = _heads(q, _kv_layout(k, v, key_dim))
        attrs = {**heads, "scale": scale, "before": before, "after": after, "exact": True}
        return self._emit("encoder_attention", (q, k, v), width, **attrs)

    def cross_kv(self, k: Buffer, v: Buffer, *, key_dim: int) -> None:
        """Write a new KV layer, for the decoder layer of the same number.

        Widths are as in :meth:`attention`.
        """
        layer, kv = len(self.kv), _kv_layout(k, v, key_dim)
        self.kv.append(kv)
        attrs = {"layer": layer, **_widths(kv)}
        self.ops.append(Op("cross_kv", (k.id, v.id), (), (), {}, attrs))

    def cross_attention(self, q: Buffer, *, scale: float) -> Buffer:
        """Attend to the encoder output, in the KV layer that the last :meth:`attention` added."""
        layer = len(self.kv) - 1
        width, heads = _heads(q, self.kv[layer])
        return self._emit("cross_attention", (q,), width, layer=layer, **heads, scale=scale)

    def cross_weights(
        self, q: Buffer, chosen: tuple[int, ...], *, first: int, scale: float
    ) -> None:
        """Add the ``chosen`` heads' attention weights to the step's result, from head ``first`` on."""
        layer = len(self.kv) - 1
        _, heads = _heads(q, self.kv[layer])
        attrs = {"layer": layer, **heads, "scale": scale, "chosen": chosen, "first": first}
        self.ops.append(Op("cross_weights", (q.id,), (), (), {}, attrs))

    def encoder_rows(self, x: Buffer) -> None:
        """Add an encoder's rows to the step's result."""
        self.ops.append(Op("encoder_rows", (x.id,), (), (), {}, {"columns": x.width}))

    def gelu(self, x: Buffer) -> Buffer:
        """Compute the exact GELU, not its tanh approximation."""
        return self._emit("gelu", (x,), x.width)

    def gelu_tanh(self, x: Buffer) -> Buffer:
        """Compute the tanh approximation of GELU."""
        return self._emit("gelu_tanh", (x,), x.width)

    def silu_mul(self, a: Buffer, b: Buffer) -> Buffer:
        """Compute silu(a) * b."""
        return self._emit("silu_mul", (a, b), a.width)

    def gelu_tanh_mul(self, a: Buffer, b: Buffer) -> Buffer:
        """Compute gelu(a) * b, with the tanh approximation of gelu."""
        return self._emit("gelu_tanh_mul", (a, b), a.width)

    def route(
        self,
        logits: Buffer,
        *,
        per_token: int,
        scores: Literal["softmax", "sigmoid"] = "softmax",
        normalize: bool = True,
        factor: float = 1.0,
        bias: str | None = None,
        groups: int = 1,
        kept_groups: int = 1,
        group_best: int = 1,
    ) -> Buffer:
        """Choose the ``per_token`` experts of each row, and their weights.

        ``bias`` is the name of a tensor [experts], or None.
        """
        experts = logits.width
        assert experts % groups == 0
        assert group_best <= experts // groups
        assert per_token <= experts // groups * kept_groups
        weights = {} if bias is None else {"bias": self._weight(bias, experts)}
        return self._emit(
            "route",
            (logits,),
            2 * per_token,
            weights,
            experts=experts,
            per_token=per_token,
            scores=scores,
            normalize=normalize,
            factor=factor,
            groups=groups,
            kept_groups=kept_groups,
            group_best=group_best,
        )

    def experts(
        self,
        x: Buffer,
        routes: Buffer,
        names: Sequence[ExpertNames],
        width: int,
        *,
        biases: Sequence[ExpertNames] = (),
        alpha: float = 1.0,
        limit: float = 0.0,
        scaled_inputs: bool = False,
    ) -> Buffer:
        """Apply the experts of ``routes`` to x; ``names`` has the tensors of each expert.

        The inner width of an expert is ``width``. ``biases`` names the bias vectors of each expert, or is
        empty; for ``alpha``, ``limit`` and ``scaled_inputs`` see the op table.
        """
        assert not (biases and scaled_inputs)
        shapes = {"gate": (width, x.width), "up": (width, x.width), "down": (x.width, width)}
        weights: dict[str, tuple[str, ...]] = {}
        for i, (role, shape) in enumerate(shapes.items()):
            weights[role] = tuple(self._weight(n[i], *shape)[0] for n in names)
            if biases:
                weights[f"{role}_bias"] = tuple(self._weight(n[i], shape[0])[0] for n in biases)
        attrs = {
            "alpha": alpha,
            "limit": limit,
            "scaled_inputs": scaled_inputs,
            "ranks": (),
            "inputs": {},
        }
        per_token = routes.width // 2
        return self._emit("experts", (x, routes), x.width, weights, per_token=per_token, **attrs)

    def causal_conv(self, x: Buffer, weight: str, size: int, *, bias: str | None = None) -> Buffer:
        """Convolve each column with its last ``size`` rows, in a new state.

        ``weight`` is a tensor [columns of x, 1, size]; ``bias`` is a name or None.
        """
        weights = {"weight": self._weight(weight, x.width, 1, size)}
        if bias is not None:
            weights["bias"] = self._weight(bias, x.width)
        state = self._state(size - 1, x.width)
        return self._emit("causal_conv", (x,), x.width, weights, state=state, size=size)

    def ssm(
        self, x: Buffer, b: Buffer, c: Buffer, dt: Buffer, name: str, *, groups: int = 1
    ) -> Buffer:
        """Run the Mamba-2 recurrence, in a new state.

        dt has a column for each head; the tensors are ``A_log``, ``dt_bias`` and ``D`` under ``name``.
        """
        assert b.width == c.width
        heads = dt.width
        weights = self._decay(name, heads) | {"skip": self._weight(f"{name}.D", heads)}
        attrs = self._recurrence(b.width // groups, x.width, heads, groups)
        return self._emit("ssm", (x, b, c, dt), x.width, weights, **attrs)

    def delta_rule(
        self, q: Buffer, k: Buffer, v: Buffer, a: Buffer, b: Buffer, name: str, *, groups: int
    ) -> Buffer:
        """Run the gated delta rule, in a new state.

        a and b have a column for each head; the tensors are ``A_log`` and ``dt_bias`` under ``name``.
        """
        assert q.width == k.width
        assert a.width == b.width
        heads = a.width
        attrs = self._recurrence(q.width // groups, v.width, heads, groups)
        weights = self._decay(name, heads)
        return self._emit("delta_rule", (q, k, v, a, b), v.width, weights, **attrs)

    def _state(self, rows: int, width: int) -> int:
        self.states.append(StateLayout(rows, width))
        return len(self.states) - 1

    def _decay(self, name: str, heads: int) -> dict[str, tuple[str, ...]]:
        return {
            "a_log": self._weight(f"{name}.A_log", heads),
            "dt_bias": self._weight(f"{name}.dt_bias", heads),
        }

    def _recurrence(self, key_dim: int, width: int, heads: int, groups: int) -> dict[str, int]:
        assert width % heads == heads % groups == 0
        state = self._state(heads * key_dim, width // heads)
        return {"state": state, "heads": heads, "groups": groups}

    def sigmoid_mul(self, a: Buffer, b: Buffer) -> Buffer:
        """Compute sigmoid(a) * b."""
        return self._emit("sigmoid_mul", (a, b), a.width)

    def sigmoid_scale(self, x: Buffer, gate: Buffer) -> Buffer:
        """Compute x * sigmoid(gate), where ``gate`` has one column."""
        assert gate.width == 1
        return self._emit("sigmoid_scale", (x, gate), x.width)

    def gelu_mul(self, a: Buffer, b: Buffer) -> Buffer:
        """Compute gelu(a) * b, with the exact gelu."""
        return self._emit("gelu_mul", (a, b), a.width)

    def scale(self, x: Buffer, factor: float) -> Buffer:
        """Compute x * factor."""
        return self._emit("scale", (x,), x.width, factor=factor)

    def soft_cap(self, x: Buffer, cap: float) -> Buffer:
        """Compute cap * tanh(x / cap)."""
        return self._emit("soft_cap", (x,), x.width, cap=cap)

    def columns(self, x: Buffer, start: int, width: int) -> Buffer:
        """Take columns ``start`` to ``start + width`` of x."""
        assert 0 <= start <= x.width - width
        return self._emit("columns", (x,), width, start=start)

    def head_columns(self, x: Buffer, start: int, size: int, stride: int) -> Buffer:
        """Take columns ``start`` to ``start + size`` of every head of x, which has ``stride`` columns."""
        assert 0 <= start <= stride - size
        assert x.width % stride == 0
        width = x.width // stride * size
        return self._emit("head_columns", (x,), width, start=start, size=size, stride=stride)

    def head_linear(self, x: Buffer, names: Sequence[str], width: int) -> Buffer:
        """Multiply each head of x by a separate matrix [width, columns of a head]; ``names`` lists them."""
        assert x.width % len(names) == 0
        depth = x.width // len(names)
        weights = {"weight": tuple(self._weight(name, width, depth)[0] for name in names)}
        return self._emit("head_linear", (x,), len(names) * width, weights, inputs={})

    def join_heads(self, a: Buffer, b: Buffer, heads: int) -> Buffer:
        """Concatenate a and b head by head: the columns of a, then those of b."""
        assert a.width % heads == b.width % heads == 0
        size = a.width // heads
        return self._emit("join_heads", (a, b), a.width + b.width, heads=heads, size=size)

    def add(self, a: Buffer, b: Buffer) -> Buffer:
        """Compute a + b."""
        assert a.width == b.width
        return self._emit("add", (a, b), a.width)

    def select_rows(self, x: Buffer) -> Buffer:
        """Keep only the rows whose logits the batch requests."""
        return self._emit("select_rows", (x,), x.width)


def _kv_layout(k: Buffer, v: Buffer, key_dim: int) -> KVLayout:
    kv_heads = k.width // key_dim
    assert k.width == kv_heads * key_dim
    assert v.width % kv_heads == 0
    return KVLayout(kv_heads, key_dim, v.width // kv_heads)


def _widths(kv: KVLayout) -> dict[str, int]:
    return {"kv_heads": kv.kv_heads, "key_dim": kv.key_dim, "value_dim": kv.value_dim}


def _heads(q: Buffer, kv: KVLayout) -> tuple[int, dict[str, int]]:
    """Return the columns of the result of ``q`` attending to ``kv``, and the attributes of the op."""
    heads = q.width // kv.key_dim
    assert q.width == heads * kv.key_dim
    assert heads % kv.kv_heads == 0
    return heads * kv.value_dim, {"heads": heads, **_widths(kv)}


def trace(
    describe: Callable[[Tracer], Buffer], *, max_positions: int, encoder: Program | None = None
) -> Program:
    """Trace ``describe`` by running it once; the buffer that it returns holds the logits.

    ``encoder`` is that of a speech model; its ``cross_kv`` ops fill the layers that this program reads.
    """
    tracer = Tracer()
    logits = describe(tracer)
    assert logits.id == tracer.ops[-1].output
    layouts = [dataclasses.replace(kv, window=0, chunked=False) for kv in tracer.kv]
    assert encoder is None or list(encoder.kv) == layouts
    return Program(
        ops=tuple(tracer.ops),
        kv=tuple(tracer.kv),
        shapes=tracer.shapes,
        vocab_size=logits.width,
        max_positions=max_positions,
        states=tuple(tracer.states),
        encoder=encoder,
    )


def trace_effect(describe: Callable[[Tracer], None], *, max_positions: int) -> Program:
    """Trace an encoder or aligner by running ``describe`` once; its last op has an effect and no output."""
    tracer = Tracer()
    describe(tracer)
    assert not tracer.ops[-1].outputs
    return Program(
        ops=tuple(tracer.ops),
        kv=tuple(tracer.kv),
        shapes=tracer.shapes,
        vocab_size=0,
        max_positions=max_positions,
    )
