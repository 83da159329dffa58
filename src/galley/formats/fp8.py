"""FP8 checkpoints (``quant_method`` "fp8"): blocks of 128 x 128 (DeepSeek, Qwen), or a scale per tensor.

A module has ``weight`` (E4M3 or E5M2) and ``weight_scale_inv``, or ``weight_scale``; both multiply. Source:
transformers' ``integrations/finegrained_fp8.py``.
"""

from functools import partial

from galley.formats.float_tables import FP8
from galley.formats.quantization import Section
from galley.formats.safetensors import StoredTensor
from galley.formats.scaled_floats import ScaledFloats, scales_of
from galley.formats.stored import Matrix, Stored, array
from galley.formats.weights import Floats

_SCALES = (".weight_scale_inv", ".weight_scale")


def read_fp8(section: Section, stored: Stored) -> dict[str, Matrix]:
    """Return the matrices of all modules with a scale.

    Raises:
        CheckpointError: tensors contradict the config or each other.
    """
    block = _block(section)
    return {
        f"{name}.weight": _floats(name, suffix, block, stored).matrix()
        for suffix in _SCALES
        for name in stored.modules(suffix)
    }


def _block(section: Section) -> tuple[int, int] | None:
    size = section.raw.get("weight_block_size")
    if size is None:
        return None
    if not isinstance(size, list) or [type(n) for n in size] != [int, int] or min(size) < 1:
        raise section.wrong("weight_block_size", "two positive whole numbers")
    return size[0], size[1]


def _floats(name: str, suffix: str, block: tuple[int, int] | None, stored: Stored) -> ScaledFloats:
    scale, weight = stored.take(name + suffix), stored.take(f"{name}.weight")
    return fp8_matrix(weight, scale, stored, block=block)


def fp8_matrix(
    weight: StoredTensor, scale: StoredTensor, stored: Stored, *, block: tuple[int, int] | None
) -> ScaledFloats:
    """Return a matrix of 8-bit floats whose ``scale`` has one value, one a row, or one a ``block``.

    Raises:
        CheckpointError: it is not a matrix of such floats, or the scale has another shape.
    """
    if weight.dtype not in FP8:
        raise weight.wrong(f"is {weight.dtype} but has a scale, expected {' or '.join(FP8)}")
    outputs, depth = array(weight, weight.dtype, (None, None)).shape
    rows, columns = (outputs, depth) if block is None else block
    grid = (-(-outputs // rows), -(-depth // columns))
    if block is None and scale.shape in ((outputs,), (outputs, 1)):
        rows, grid = 1, (outputs, 1)
    if scale.shape != grid and not (grid == (1, 1) and scale.shape in ((), (1,))):
        raise scale.wrong(
            f"has shape {list(scale.shape)}, expected {list(grid)} for a weight of {[outputs, depth]}"
        )
    blocks = "" if block is None else f", blocks of {rows} x {columns}"
    return ScaledFloats(
        name=weight.name,
        weight=weight,
        table=FP8[weight.dtype],
        shape=(outputs, depth),
        block=(rows, columns),
        scales=partial(_grid, scale, grid),
        floats=stored.floats,
        keeps_floats=stored.keeps_floats,
        stored=f"FP8 ({weight.dtype.removeprefix('F8_')}{blocks})",
    )


def _grid(scale: StoredTensor, grid: tuple[int, int]) -> Floats:
    return scales_of(scale).reshape(grid)
