"""GPTQ checkpoints: integers of 2, 3, 4 or 8 bits, packed along the inputs.

A module has ``qweight`` [inputs * bits / 32, outputs], ``qzeros`` [groups, outputs * bits / 32],
``scales`` [groups, outputs] and mostly ``g_idx`` [inputs], the group of each input. Version 1 of the format
(``checkpoint_format`` "gptq") stores a zero point less one, version 2 ("gptq_v2") as it is.

Sources: AutoGPTQ's and GPTQModel's ``QuantLinear.pack``.
"""

from functools import partial
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from galley.formats.packed_integers import PackedIntegers, column_groups, unpack
from galley.formats.quantization import Section
from galley.formats.safetensors import StoredTensor
from galley.formats.stored import Bytes, Matrix, Stored, array, read_floats, scale_type
from galley.formats.weights import Floats

Words = npt.NDArray[np.int32]

_BITS: Final = (2, 3, 4, 8)


class _Config(NamedTuple):
    """Bits and group sizes that modules may have, and whether zero points are stored less one."""

    bits: frozenset[int]
    groups: frozenset[int]
    less_one: bool


def read_gptq(section: Section, stored: Stored) -> dict[str, Matrix]:
    """Return the matrices of all modules in this packing.

    Raises:
        CheckpointError: tensors contradict the config or each other.
        UnsupportedModel: they are laid out for another program's kernels.
    """
    config = _config(section)
    modules = stored.modules(".qweight")
    return {f"{name}.weight": _integers(name, config, stored).matrix() for name in modules}


def _config(section: Section) -> _Config:
    version = section.choice("checkpoint_format", "gptq", ("gptq", "gptq_v2"))
    if section.flag("is_marlin_format", False):
        raise section.unsupported("is_marlin_format", "use the checkpoint in GPTQ's own format")
    sections = [section, *section.sections("dynamic")]
    bits = frozenset(one.whole("bits", 0) for one in sections if "bits" in one.raw)
    if not bits or not bits <= {*_BITS}:
        raise section.wrong("bits", "2, 3, 4 or 8")
    groups = frozenset(
        one.whole("group_size", -1, least=-1) for one in sections if "group_size" in one.raw
    )
    return _Config(bits, groups or frozenset([-1]), version == "gptq")


def _integers(name: str, config: _Config, stored: Stored) -> PackedIntegers:
    qweight, qzeros = stored.take(f"{name}.qweight"), stored.take(f"{name}.qzeros")
    scales, g_idx = stored.take(f"{name}.scales"), stored.take_any(f"{name}.g_idx")
    words: Words = array(qweight, "I32", (None, None))
    groups_of = None if g_idx is None else array(g_idx, "I32", (None,))
    outputs = words.shape[1]
    bits, depth = _bits(qweight, None if groups_of is None else len(groups_of), config)
    kind = scale_type(scales)
    group, groups = _group(scales, depth, config)
    array(scales, kind, (groups, outputs))
    packed: Words = array(qzeros, "I32", (groups, -(-outputs * bits // 32)))
    order = None
    if g_idx is not None and groups_of is not None:
        order = column_groups(g_idx, groups_of, group, groups)
    symmetric = _all_middle(packed, bits, outputs, config.less_one)
    return PackedIntegers(
        name=f"{name}.weight",
        weight=qweight,
        bits=bits,
        shape=(outputs, depth),
        group=group,
        scale_type=kind,
        q=lambda: unpack(np.ascontiguousarray(words.T), bits, depth),
        scales=partial(_transposed, scales),
        zeros=None if symmetric else lambda: _zeros(packed, bits, outputs, config.less_one),
        order=order,
        floats=stored.floats,
    )


def _bits(qweight: StoredTensor, depth: int | None, config: _Config) -> tuple[int, int]:
    """Return the bits of an integer and the number of inputs; packed inputs fill one word for each row."""
    words = qweight.shape[0]
    fitting = [
        (bits, words * 32 // bits if depth is None else depth)
        for bits in sorted(config.bits)
        if depth is None or -(-depth * bits // 32) == words
    ]
    if len(fitting) != 1:
        inputs = "unknown" if depth is None else depth
        raise qweight.wrong(
            f"has {words} rows of 32 bits for {inputs} inputs, which does not match bits "
            f"{sorted(config.bits)} of the config"
        )
    return fitting[0]


def _group(scales: StoredTensor, depth: int, config: _Config) -> tuple[int, int]:
    """Return the columns of a group, and the number of groups."""
    sizes = sorted({depth if size < 1 else min(size, depth) for size in config.groups})
    rows = scales.shape[0] if scales.shape else 0
    for size in sizes:
        if -(-depth // size) == rows:
            return size, rows
    raise scales.wrong(
        f"has {rows} groups for {depth} inputs, which does not match group_size "
        f"{sorted(config.groups)} of the config"
    )


def _transposed(scales: StoredTensor) -> Floats:
    return np.ascontiguousarray(read_floats(scales).T)


def _all_middle(packed: Words, bits: int, outputs: int, less_one: bool) -> bool:
    """Return whether all zero points are the middle of the integers' range."""
    middle = (1 << (bits - 1)) - less_one
    if 32 % bits == 0 and outputs * bits % 32 == 0:
        word = sum(middle << place for place in range(0, 32, bits))
        return bool((packed.view(np.uint32) == word).all())
    return bool((unpack(packed, bits, outputs) == middle).all())


def _zeros(packed: Words, bits: int, outputs: int, less_one: bool) -> Bytes:
    """Return the zero points [outputs, groups].

    GPTQModel subtracts and adds the ones word by word, so that a zero point of 0 borrows from its
    neighbors; for 3 bits, which cross words, it wraps each zero point separately.
    """
    if less_one and 32 % bits == 0:
        ones = np.uint32(sum(1 << place for place in range(0, 32, bits)))
        packed = (packed.view(np.uint32) + ones).view(np.int32)
    zeros = unpack(packed, bits, outputs)
    if less_one and 32 % bits:
        zeros = zeros + np.uint8(1) & np.uint8((1 << bits) - 1)
    return np.ascontiguousarray(zeros.T)
