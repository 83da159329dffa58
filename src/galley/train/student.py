"""The model to train: a traced program, its tensors as parameters, and the checkpoint that they become."""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from galley.calibration.compressed import Raw, tensors_of, write_tensors
from galley.calibration.matrices import check_dense
from galley.calibration.quantize import copy_others
from galley.engine.read_model import Model
from galley.errors import SettingsError
from galley.formats.checkpoint import SINGLE_FILE
from galley.formats.json_file import read_json
from galley.formats.values import as_dense, to_float32
from galley.formats.vocabulary import first_difference
from galley.formats.weights import DenseWeight, IntWeight, WeightType
from galley.graph.program import Op, Program
from galley.models.registry import build_program
from galley.train.fake_quantize import Rounding, fake_quantized, fake_stored
from galley.train.forward import check_trainable

_TYPES: Final[Mapping[str, WeightType]] = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
_TOKENS: Final = ("bos_token_id", "eos_token_id", "pad_token_id")
_EMBEDDING_STD: Final = 0.02
_BY_LAYER: Final = ("layer_types", "no_rope_layers")
"""Fields of config.json with one element per layer."""


@dataclass(frozen=True)
class Student:
    """A model whose tensors have gradients.

    Attributes:
        config: its ``config.json``.
        program: the program traced from ``config``.
        parameters: tensor name -> values in float32.
        types: tensor name -> element type in the checkpoint.
        roundings: matrix -> rounding to the integers that it becomes; the others stay floats.
        packed: whether the checkpoint has these integers; otherwise it has floats that become these
            integers when it is loaded.
    """

    config: Mapping[str, Any]
    program: Program
    parameters: Mapping[str, Tensor]
    types: Mapping[str, WeightType]
    roundings: Mapping[str, Rounding] = field(default_factory=dict)
    packed: bool = False

    def __post_init__(self) -> None:
        check_trainable(self.program)
        for values in self.parameters.values():
            values.requires_grad_()

    def weights(self, *, stored: bool = False) -> dict[str, Tensor]:
        """Return the tensors that it computes with: rounded, where relevant, as they will be when served.

        Args:
            stored: whether to include those that are only rounded to the checkpoint's type.
        """
        stored = stored or bool(self.roundings)
        return {
            name: fake_quantized(name, values, self.roundings[name])
            if name in self.roundings
            else fake_stored(values, self.types[name])
            if stored and self.types[name] != "F32"
            else values
            for name, values in self.parameters.items()
        }

    def write(self, out: Path, source: Model) -> None:
        """Write an ordinary checkpoint folder.

        Args:
            out: the folder, which exists.
            source: the model whose tokenizer and other files are copied.

        Raises:
            OSError: the folder cannot be written to.
        """
        raw: dict[str, Raw] = {}
        for weight in self._written():
            raw |= tensors_of(weight)
        write_tensors(out / SINGLE_FILE, raw)
        copy_others(source.checkpoint.folder, out)
        # What the card says of the source does not apply to this model.
        (out / "README.md").unlink(missing_ok=True)
        self.write_config(out, {})

    def write_config(self, out: Path, more: Mapping[str, Any]) -> None:
        """Write ``config.json`` with further fields."""
        text = json.dumps({**self.config, **more}, indent=2)
        (out / "config.json").write_text(text + "\n", encoding="utf-8")

    def _written(self) -> Iterator[IntWeight | DenseWeight]:
        for name, parameter in self.parameters.items():
            values = parameter.detach().cpu().numpy()
            if self.packed and name in self.roundings:
                yield self.roundings[name](name, values)
            else:
                yield as_dense(name, self.types[name], values)


def read_parameters(model: Model) -> tuple[dict[str, Tensor], dict[str, WeightType]]:
    """Return a model's tensors and their types.

    Args:
        model: a model that passes :func:`galley.calibration.matrices.check_dense`.
    """
    parameters: dict[str, Tensor] = {}
    types: dict[str, WeightType] = {}
    for name in model.program.shapes:
        weight = model.weights[name]
        assert isinstance(weight, DenseWeight)
        parameters[name] = torch.from_numpy(to_float32(weight).copy())
        types[name] = weight.dtype
    return parameters, types


def from_config(path: Path, teacher: Model, seed: int) -> Student:
    """Create a new model with random weights.

    Matrices are initialized with a standard deviation of 1 / sqrt(inputs), embeddings with
    ``initializer_range``, norms as the identity, biases with 0.

    Args:
        path: its ``config.json``; ids of special tokens that it leaves out are taken from the teacher.
        teacher: the model whose vocabulary it has.
        seed: seed of the weights.

    Raises:
        ModelError: the file cannot be read, or does not describe a model that can be trained.
        SettingsError: it has another vocabulary.
    """
    known = {name: value for name, value in teacher.checkpoint.config.items() if name in _TOKENS}
    config = {**known, **read_json(path)}
    program = build_program(config)
    if program.vocab_size != teacher.program.vocab_size:
        raise SettingsError(
            f"{path}: vocab_size is {program.vocab_size}, but the student must have the teacher's "
            f"{teacher.program.vocab_size} tokens"
        )
    dtype = config.get("dtype", config.get("torch_dtype", "bfloat16"))
    if dtype not in _TYPES:
        raise SettingsError(f"{path}: dtype is {dtype!r}, expected one of {', '.join(_TYPES)}")
    std = config.get("initializer_range", _EMBEDDING_STD)
    random = torch.Generator().manual_seed(seed)
    values: dict[str, Tensor] = {}
    for op in program.ops:
        for role, names in op.weights.items():
            for name in names:
                if name not in values:
                    values[name] = _initial(op, role, program.shapes[name], std, random)
    return Student(config, program, values, dict.fromkeys(values, _TYPES[dtype]))


def _initial(
    op: Op, role: str, shape: tuple[int, ...], std: float, random: torch.Generator
) -> Tensor:
    if role == "bias":
        return torch.zeros(shape)
    if op.name in ("rms_norm", "layer_norm"):
        return torch.full(shape, 1.0 - op.attrs.get("offset", 0.0))
    spread = std if op.name == "embed" else shape[-1] ** -0.5
    return torch.randn(shape, generator=random) * spread


def from_model(model: Model, teacher: Model) -> Student:
    """Return an existing model as a student, to be trained further.

    Args:
        model: a model of dense weights.
        teacher: a model with the same tokens under the same ids; the number of embedding rows may differ.

    Raises:
        SettingsError: a token has another id.
        UnsupportedModel: the model is quantized, or cannot be trained.
    """
    check_dense(model)
    folder = model.checkpoint.folder
    if (difference := first_difference(teacher.checkpoint.folder, folder)) is not None:
        raise SettingsError(
            f"{folder} cannot be a student of this teacher, because their tokens differ: {difference}"
        )
    return Student(model.checkpoint.config, model.program, *read_parameters(model))


def from_layers(teacher: Model, layers: Sequence[int]) -> Student:
    """Return the teacher with only some of its layers as a student.

    Args:
        teacher: a dense text model.
        layers: numbers of the layers, ascending.

    Raises:
        SettingsError: the teacher lacks one, or one would not be the same at its new place.
    """
    config = own = dict(teacher.checkpoint.config)
    if "text_config" in config:
        own = config["text_config"] = dict(config["text_config"])
    count = int(own["num_hidden_layers"])
    if (
        not layers
        or list(layers) != sorted(set(layers))
        or not 0 <= layers[0] <= layers[-1] < count
    ):
        raise SettingsError(
            f"--layers {','.join(map(str, layers))}: expected ascending numbers from 0 to {count - 1}"
        )
    for name in _BY_LAYER:
        if isinstance(own.get(name), list):
            own[name] = [own[name][layer] for layer in layers]
    own["num_hidden_layers"] = len(layers)
    program = build_program(config)
    places = {old: new for new, old in enumerate(layers)}
    _check_same(teacher.program, program, places)
    parameters, types = read_parameters(teacher)
    renamed = {_renamed(name, places): name for name in parameters}
    names = [name for name in renamed if name in program.shapes]
    return Student(
        config,
        program,
        {name: parameters[renamed[name]] for name in names},
        {name: types[renamed[name]] for name in names},
    )


def _layer_of(name: str) -> int | None:
    """Return the layer number in a name, such as 3 in ``model.layers.3.mlp.down_proj.weight``."""
    parts = name.split(".")
    return next((int(part) for part in parts if part.isdigit()), None)


def _renamed(name: str, places: Mapping[int, int]) -> str:
    """Return the name at the layer's new place; empty if the layer is left out."""
    layer = _layer_of(name)
    if layer is None:
        return name
    return name.replace(f".{layer}.", f".{places[layer]}.", 1) if layer in places else ""


def _check_same(teacher: Program, student: Program, places: Mapping[int, int]) -> None:
    """Check that each layer does the same at its new place.

    What a layer does may follow from its number, and config.json cannot always override that.

    Raises:
        SettingsError: a layer would do something else.
    """
    before, after = (_by_layer(program) for program in (teacher, student))
    for old, new in places.items():
        if before[old] != after[new]:
            raise SettingsError(
                f"layer {old} of the teacher would have another window or rotation as layer {new}; "
                "leave out "
                "whole periods of layers"
            )


def _by_layer(program: Program) -> dict[int, list[tuple[Any, ...]]]:
    """Return layer -> its ops, without names and the layer's number."""
    found: dict[int, list[tuple[Any, ...]]] = {}
    layer: int | None = None
    for op in program.ops:
        names = [name for part in op.weights.values() for name in part]
        if op.name == "select_rows":
            break
        layer = next((n for n in map(_layer_of, names) if n is not None), layer)
        if layer is not None:
            attrs = {name: value for name, value in op.attrs.items() if name != "layer"}
            shapes = [program.shapes[name] for name in names]
            found.setdefault(layer, []).append((op.name, attrs, op.widths, shapes))
    return found


def begin(out: Path, state: Path, digest: str) -> bool:
    """Begin a run in the folder, or return True if a run of this digest began there before.

    Otherwise the folder must be new or empty.

    Raises:
        SettingsError: the folder holds something else.
    """
    note = state / "digest"
    if note.exists():
        if note.read_text() != digest:
            raise SettingsError(
                f"{out} contains a run with other weights, data or options; remove it, or write to another "
                "folder"
            )
        return True
    if out.exists() and any(path != state for path in out.iterdir()):
        raise SettingsError(f"{out} is not empty; name a new folder")
    shutil.rmtree(state, ignore_errors=True)
    state.mkdir(parents=True)
    note.write_text(digest)
    return False
