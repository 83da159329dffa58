"""Compare the methods of ``galley quantize`` with llm-compressor, GPTQModel and NNCF.

    python -m benchmarks.quantize_peers [MODEL] [--llm-compressor PYTHON] [--gptqmodel PYTHON]
        [--nncf PYTHON] [--group N] [--calibrate FILE] [--data FILE] [--results FILE]

MODEL is a folder; the default is the bundled model. Each PYTHON is the interpreter of a virtual environment
that has the peer (llmcompressor 0.14; gptqmodel 7.7; nncf 3.4 and transformers). All calibrate on the same
token ids and write symmetric int4 with a 16-bit scale per group; the embedding and the output head are not
quantized. Galley loads a peer's output without loss and measures it like its own. Activations are not
quantized, so only the weights differ. A peer that fails is reported and left out.
"""

import argparse
import json
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from benchmarks.quantize import (
    add_arguments,
    bits_of,
    described,
    figures_of,
    measure,
    read,
    source_of,
    texts_of,
    uniform,
)
from benchmarks.results_file import put
from galley.calibration.layerwise import Layerwise
from galley.calibration.measures import Divergence, Loss, following
from galley.calibration.quantize import INPUTS, METHODS
from galley.engine.read_model import Model
from galley.ops.choice import choose_executor
from galley.ops.sampling import Logits
from galley.quant.grid import Scheme

_SCRIPTS: Final = Path(__file__).parent / "quantizers"
PEERS: Final[Mapping[str, tuple[str, ...]]] = {
    "llm-compressor": ("gptq", "awq"),
    "gptqmodel": ("gptq",),
    "nncf": ("awq+scale",),
}
"""Peer -> its methods."""


class Reference:
    """The base model's next-token logits, the reference for the others."""

    def __init__(self, base: Model, windows: Sequence[Sequence[int]]) -> None:
        """Compute the base model's logits."""
        self._windows = windows
        self._base = [logits.copy() for logits in self._logits(base)]

    def _logits(self, model: Model) -> Iterator[Logits]:
        _, factory = choose_executor("auto", "cpu")
        run = Layerwise(model.program, model.weights, self._windows, factory, model.options)
        run.advance(run.kept[-1])
        return (logits for _, logits in run.logits())

    def loss(self, model: Model) -> Loss:
        """Return another model's loss relative to the base."""
        after, first, divergence = following(self._windows), 0, Divergence()
        for base, logits in zip(self._base, self._logits(model), strict=True):
            divergence.add(base, logits, after[first : first + len(base)])
            first += len(base)
        return divergence.loss()


def make(peer: str, method: str, python: Path, arguments: Sequence[str], log: Path) -> bool:
    """Run a peer's quantization; return whether it succeeded. Its output is in ``log``."""
    script = _SCRIPTS / f"with_{peer.replace('-', '_')}.py"
    with log.open("w") as file:
        done = subprocess.run(
            [python.absolute(), script, *arguments],
            stdout=file,
            stderr=subprocess.STDOUT,
            cwd=log.parent,
            check=False,
        )
    if done.returncode:
        print(f"{peer} {method} failed: {log.read_text()[-500:]}", flush=True)
    return done.returncode == 0


def main() -> None:
    """Print a line for each peer, and write the figures to a results file if one is given."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser)
    for peer in PEERS:
        parser.add_argument(f"--{peer}", type=Path, metavar="PYTHON")
    wanted = parser.parse_args()
    model, source = read(wanted.model), source_of(wanted)
    texts = texts_of(wanted.model, source)
    scheme, losses = Scheme(4, wanted.group), {}
    bits = bits_of(model, uniform(model, "rtn", scheme))
    with tempfile.TemporaryDirectory() as home:
        for method in (m for m in METHODS if m not in INPUTS):
            plan = uniform(model, method, scheme)
            loss, seconds = measure(model, plan, texts, Path(home) / method)
            losses[f"Galley {method}"] = loss
            print(described(f"Galley {method}", loss, bits, seconds), flush=True)
        reference = Reference(model, texts.measured)
        windows = Path(home) / "windows.json"
        windows.write_text(json.dumps(texts.calibration))
        for peer, methods in PEERS.items():
            python = getattr(wanted, peer.replace("-", "_"))
            for way in methods if python is not None else ():
                began, out = time.monotonic(), Path(home) / f"{peer}-{way}"
                arguments = [str(model.checkpoint.folder), str(windows), str(out), way]
                if make(peer, way, python, [*arguments, str(wanted.group)], Path(f"{out}.log")):
                    seconds = time.monotonic() - began
                    losses[f"{peer} {way}"] = loss = reference.loss(read(str(out)))
                    print(described(f"{peer} {way}", loss, bits, seconds), flush=True)
    if wanted.results is not None:
        what = f"{wanted.name}, int4 in groups of {wanted.group}, compared with peers"
        put(wanted.results, figures_of(what, losses, source, "benchmarks.quantize_peers"))


if __name__ == "__main__":
    main()
