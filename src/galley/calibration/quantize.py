"""Quantization of a checkpoint layer by layer: resumable, with at most one layer in memory."""

import dataclasses
import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import numpy as np

from galley.calibration.compressed import (
    FLOAT_INPUTS,
    INDEX_FILE,
    Raw,
    names_in,
    quantization_config,
    tensors_of,
    write_tensors,
)
from galley.calibration.experts import (
    Inputs,
    check_experts,
    expert_weights,
    quantize_experts,
)
from galley.calibration.held_out import Texts
from galley.calibration.layerwise import Layerwise
from galley.calibration.matrices import block_of, check_dense, linear_names
from galley.calibration.measures import Divergence, Loss, following
from galley.calibration.rounding import Rounding, rounding_of
from galley.engine.read_model import Model
from galley.errors import SettingsError
from galley.files import complete_or_absent
from galley.formats.quantization import QUANTIZED_KEY
from galley.formats.source import TEMPLATES_FOLDER
from galley.formats.weights import DenseWeight, IntWeight
from galley.graph.program import Op
from galley.models.heads import is_head, untied
from galley.ops.executor import ExecutorFactory
from galley.quant.grid import Scheme

Method = Literal["rtn", "mse", "gptq", "awq", "smoothquant"]
METHODS: Final[tuple[Method, ...]] = ("rtn", "mse", "gptq", "awq", "smoothquant")
CALIBRATED: Final = ("gptq", "awq", "smoothquant")
"""Methods that use the inputs of the layers."""

CORRECTING: Final = ("gptq",)
"""Those of these methods whose layers compensate for the loss of earlier ones."""

INPUTS: Final[Mapping[str, str]] = {"smoothquant": "int8"}
"""Method -> type of rounded inputs when its loss is measured, whatever the file's own input type."""

OnLayer: TypeAlias = Callable[[str], None]
OnWritten: TypeAlias = Callable[[Path], None]

_STATE_FOLDER: Final = ".galley-quantize"
_WEIGHTS: Final = (".safetensors", ".safetensors.index.json", ".bin", ".pth", ".gguf")


@dataclass(frozen=True)
class Layer:
    """The linear layers of one block.

    Attributes:
        name: such as ``model.layers.3``.
        buffers: the kept buffers that they read, in order.
        end: the first kept buffer after them.
    """

    name: str
    buffers: tuple[int, ...]
    end: int


@dataclass(frozen=True)
class Plan:
    """The quantization of a checkpoint.

    Attributes:
        method: how integers are found.
        schemes: tensor -> how it is quantized; all others stay as they are.
        act_order: see :func:`galley.quant.gptq.factor_of`.
        inputs: the file's statement about the inputs of these layers: FLOAT_INPUTS, DYNAMIC_INPUTS, or the
            observer of static scales.
    """

    method: Method
    schemes: Mapping[str, Scheme]
    act_order: bool = True
    inputs: str = FLOAT_INPUTS

    def fingerprint(self) -> str:
        """Return all of it as text, the same for equal plans."""
        schemes = sorted((name, dataclasses.astuple(s)) for name, s in self.schemes.items())
        inputs = [] if self.inputs == FLOAT_INPUTS else [self.inputs]
        return json.dumps([self.method, self.act_order, schemes, *inputs])

    @property
    def rounded_inputs(self) -> str | None:
        """Type to which inputs are rounded when the loss is measured; None: they stay floats."""
        return INPUTS.get(self.method) if self.inputs == FLOAT_INPUTS else "int8"


class Quantizer:
    """Writes a quantized copy of a checkpoint. Completed layers are kept in the new folder, and not redone.

    Attributes:
        layers: number of layers.
        done: how many of them have been written.
        hardly_reached: expert to which fewer rows of the calibration texts were routed than its matrices
            have columns, so that they are rounded to nearest -> these rows.
    """

    def __init__(
        self,
        model: Model,
        factory: ExecutorFactory,
        out: Path,
        plan: Plan,
        texts: Texts,
    ) -> None:
        """Look for the layers that are already done.

        Args:
            model: a text model with dense weights, whose executor options apply to its layers.
            factory: of that executor.
            out: the new folder.
            plan: the quantization.
            texts: to calibrate with, which only methods in :data:`CALIBRATED` need, and others to
                measure on.

        Raises:
            SettingsError: the folder holds something else.
            UnsupportedModel: the model is a speech model, is quantized, or has experts that the method
                does not support.
        """
        self._model, self._out, self._plan = model, out, plan
        check_dense(model, experts=True)
        check_experts(model, plan.method)
        self.hardly_reached: dict[str, int] = {}
        self._texts = texts

        def layerwise(windows: Sequence[Sequence[int]], inputs: str | None = None) -> Layerwise:
            made = (model.program, model.weights, windows, factory, model.options)
            return Layerwise(*made, inputs=inputs)

        measured = layerwise(texts.measured, plan.rounded_inputs)
        self._runs = {"base": layerwise(texts.measured), "measured": measured}
        if plan.method in CALIBRATED:
            self._runs["calibration"] = layerwise(texts.calibration)
        if plan.method in CORRECTING:
            self._runs["originals"] = layerwise(texts.calibration)
        self.layers = tuple(self._find_layers())
        self.digest = self._digest()
        self.done = self._resume()

    @property
    def calibration(self) -> str:
        """Digest of the data that the method saw; empty if it saw none."""
        if self._plan.method not in CALIBRATED:
            return ""
        return hashlib.sha256(json.dumps(self._texts.calibration).encode()).hexdigest()[:16]

    def run(
        self,
        on_layer: OnLayer = lambda name: None,
        on_written: OnWritten = lambda folder: None,
    ) -> Loss:
        """Write the checkpoint, and return its loss on the texts to measure on.

        Args:
            on_layer: called with each layer that has been written.
            on_written: called with the folder when all is written; it is called again after an
                interruption.

        Raises:
            UnsupportedModel: a matrix holds values that are infinite or NaN.
            OSError: the folder cannot be written to.
        """
        rounding = rounding_of(
            self._plan.method, self._model, self._plan.schemes, act_order=self._plan.act_order
        )
        for layer in self.layers[self.done :]:
            weights = self._quantized(rounding, layer)
            for weight in weights:
                self._runs["measured"].replace(weight)
                if rounding.sequential and "calibration" in self._runs:
                    self._runs["calibration"].replace(weight)
            raw: dict[str, Raw] = {}
            for weight in weights:
                raw |= tensors_of(weight, packed=self._plan.inputs == FLOAT_INPUTS)
            write_tensors(self._out / self._shard(self.done), raw)
            for run in self._runs.values():
                run.advance(layer.end)
            self.done += 1
            self._keep()
            on_layer(layer.name)
        loss = self._loss()
        self._finish(loss)
        on_written(self._out)
        shutil.rmtree(self._state)
        return loss

    def _quantized(self, rounding: Rounding, layer: Layer) -> list[IntWeight | DenseWeight]:
        run = self._runs.get("calibration")
        if run is None:
            names = [n for b in layer.buffers for n in self._names(b)]
            return [rounding.alone(name) for name in names]
        nearest: list[IntWeight] = []
        for buffer in layer.buffers:
            few: list[IntWeight] = []
            rows = run.advance(buffer)
            originals = self._runs.get("originals", run).advance(buffer)
            op = run.experts(buffer)
            if op is None:
                found = rounding.see(buffer, self._names(buffer), rows, originals)
            else:
                found, few = self._experts(rounding, op)
                nearest += few
            for weight in (*found, *few):
                run.replace(weight)
        return [*rounding.end_layer(), *nearest]

    def _experts(self, rounding: Rounding, op: Op) -> tuple[list[IntWeight], list[IntWeight]]:
        """Return experts whose routes are known: those that are calibrated, and those that are not."""
        x, routes = op.inputs
        run = self._runs["calibration"]
        originals = self._runs.get("originals", run).values[x]
        made = quantize_experts(
            self._model,
            op,
            self._plan.schemes,
            Inputs(run.values[x], originals, run.values[routes]),
            lambda names, rows, originals: rounding.see(routes, names, rows, originals),
            rounding.alone,
        )
        self.hardly_reached |= made.rows
        return made.calibrated, made.nearest

    def _names(self, buffer: int) -> list[str]:
        """Return the matrices to be quantized that read a buffer: experts read that of their routes."""
        run = self._runs["base"]
        names = [name for op in run.linears(buffer) for name in op.weights["weight"]]
        op = run.experts(buffer)
        names += [] if op is None else expert_weights(op)
        return [name for name in names if name in self._plan.schemes]

    def _find_layers(self) -> Iterator[Layer]:
        found: dict[str, list[int]] = {}
        for buffer in self._runs["base"].kept:
            names = self._names(buffer)
            if names:
                found.setdefault(block_of(names[0]), []).append(buffer)
        kept = self._runs["base"].kept
        for name, buffers in found.items():
            yield Layer(name, tuple(buffers), kept[kept.index(buffers[-1]) + 1])

    def _shard(self, number: int) -> str:
        return f"model-{number + 1:05}-of-{len(self.layers) + 1:05}.safetensors"

    def _digest(self) -> str:
        known = (self._model.checkpoint.state(), self._plan.fingerprint(), json.dumps(self._texts))
        return hashlib.sha256("\0".join(known).encode()).hexdigest()

    @property
    def _state(self) -> Path:
        return self._out / _STATE_FOLDER

    def _resume(self) -> int:
        """Return the number of completed layers; the folder must be new, empty, or of an equal run."""
        state = self._state / "state.json"
        if state.exists():
            read = json.loads(state.read_text())
            if read["digest"] != self.digest:
                raise SettingsError(
                    f"{self._out} contains a run with other weights, data or options; remove it, or write "
                    "to another folder"
                )
            done = int(read["done"])
            self.hardly_reached |= read["hardly_reached"]
            for name, run in self._runs.items():
                with np.load(self._state / f"{name}-{done}.npz") as arrays:
                    values = {int(key): arrays[key] for key in arrays.files}
                run.skip_past(self.layers[done - 1].end, values)
            return done
        if self._out.exists() and any(self._out.iterdir()):
            raise SettingsError(f"{self._out} is not empty; name a new folder")
        self._out.mkdir(parents=True, exist_ok=True)
        return 0

    def _keep(self) -> None:
        """Save the state with which the next layer begins, and delete that of the layer before."""
        self._state.mkdir(exist_ok=True)
        for name, run in self._runs.items():
            arrays: dict[str, Any] = {str(b): rows for b, rows in run.values.items()}
            np.savez(self._state / f"{name}-{self.done}.npz", **arrays)
        kept = {"digest": self.digest, "done": self.done, "hardly_reached": self.hardly_reached}
        with complete_or_absent(self._state / "state.json") as partial:
            partial.write_text(json.dumps(kept))
        for name in self._runs:
            (self._state / f"{name}-{self.done - 1}.npz").unlink(missing_ok=True)

    def _loss(self) -> Loss:
        base, measured = self._runs["base"], self._runs["measured"]
        for run in (base, measured):
            run.advance(run.kept[-1])
        after = following(self._texts.measured)
        divergence = Divergence()
        for (first, p), (_, q) in zip(base.logits(), measured.logits(), strict=True):
            divergence.add(p, q, after[first : first + len(p)])
        return divergence.loss()

    def _finish(self, loss: Loss) -> None:
        """Write the tensors that stay as they are, the index, ``config.json``, and all other files."""
        folder = self._model.checkpoint.folder
        written = {
            name.removesuffix("_packed"): shard
            for shard in map(self._shard, range(len(self.layers)))
            for name in names_in(self._out / shard)
        }
        rest: dict[str, Raw] = {}
        tensors = self._model.checkpoint.weights()
        for name in tensors:
            weight = tensors[name]
            if name not in written and isinstance(weight, DenseWeight):
                rest |= tensors_of(weight)
        last = self._shard(len(self.layers))
        write_tensors(self._out / last, rest)
        write_index(self._out, map(self._shard, range(len(self.layers) + 1)))
        config = dict(self._model.checkpoint.config)
        if any(map(is_head, self._model.program.shapes)):
            config = untied(config)
        linears = [op for op in self._model.program.ops if op.name == "linear"]
        everything = [name for op in linears for name in op.weights["weight"]]
        schemes = self._plan.schemes
        shapes = self._model.program.shapes
        kept = {name: s.fitting(shapes[name][1]) for name, s in schemes.items()}
        config["quantization_config"] = quantization_config(
            kept,
            [each for name in everything if name not in schemes for each in linear_names(name)],
            self._plan.inputs,
        )
        config[QUANTIZED_KEY] = {
            "method": self._plan.method,
            "calibration": self.calibration,
            "kl": loss.kl,
            "kl99": loss.kl_p99,
            "top1": loss.top1,
            **({"hardly_reached": self.hardly_reached} if self.hardly_reached else {}),
        }
        copy_others(folder, self._out)
        (self._out / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def write_index(out: Path, shards: Iterable[str]) -> None:
    """Write the index of a checkpoint's files, which are in the folder."""
    files = list(shards)
    places = {name: shard for shard in files for name in names_in(out / shard)}
    size = sum((out / shard).stat().st_size for shard in files)
    index = {"metadata": {"total_size": size}, "weight_map": places}
    (out / INDEX_FILE).write_text(json.dumps(index, indent=2) + "\n")


def copy_others(source: Path, out: Path) -> None:
    """Copy every file that holds no weights: tokenizer, template, generation defaults."""
    for path in source.iterdir():
        if path.is_file() and not path.name.endswith(_WEIGHTS) and path.name != "config.json":
            shutil.copyfile(path, out / path.name)
    if (source / TEMPLATES_FOLDER).is_dir():
        (out / TEMPLATES_FOLDER).mkdir(exist_ok=True)
        for path in (source / TEMPLATES_FOLDER).glob("*.jinja"):
            shutil.copyfile(path, out / TEMPLATES_FOLDER / path.name)
