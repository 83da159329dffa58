"""Compare Galley with llama.cpp on the same GGUF files: next-token distributions, answers and tokenizers.

    python -m benchmarks.gguf_peers --llama PYTHON [--windows N] [--strings N]

PYTHON has llama-cpp-python and numpy. ``galley quantize --format gguf`` writes the bundled model as BF16,
Q4_0, Q4_1 and Q8_0; llama.cpp's quantizer makes the other types from the BF16 file. The text is the
questions and answers of the held-out sets. The reference ("truth" in the table) is llama.cpp running the
values that the gguf package reads from a file, as float32. Divergences are KL(first || second) of the next
token in nats, averaged over all positions.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from tests.text import trained

from benchmarks.gguf_llama import FILE_TYPES
from galley import LLM, SamplingParams
from galley.calibration.forward import TeacherForced
from galley.calibration.measures import Divergence, following
from galley.cli.terminal import table
from galley.demo import heldout
from galley.formats.gguf_file import read_gguf
from galley.formats.gguf_writer import Outgoing, write_gguf
from galley.formats.reader import open_checkpoint
from galley.settings.engine import EngineSettings
from galley.text.gguf_vocabulary import vocabulary_of
from galley.text.tokenizer import Tokenizer

MODEL: Final = "galley-demo"
OWN: Final = {
    "BF16": ("--method", "none"),
    "Q4_0": ("--method", "mse"),
    "Q4_1": ("--method", "mse", "--zero-points"),
    "Q8_0": ("--method", "rtn", "--bits", "8"),
}
"""Types that ``galley quantize`` writes, and how."""

STEPS: Final = 32
PROMPTS: Final = 24
WORDS: Final = [
    *("the", "cat", "sat", "on", "a", "mat", "He'll", "don't", "WE'VE", "it's", "I'M", "naïve"),
    *(
        "Straße",
        "Ωμέγα",
        "Привет",
        "你好世界",
        "한국어",
        "日本語",
        "مرحبا",
        "🦉",
        "👩\u200d🚀",
        "e\u0301",
    ),
    *(
        " ",
        "  ",
        "   ",
        "\n",
        "\n\n",
        "\t",
        "\r\n",
        " \n ",
        "!",
        "?!",
        "...",
        "------",
        "=",
        "{}",
        "/*",
    ),
    *("0", "1", "12", "345", "6789", "3.14", "x_y", "αβ"),
]


@dataclass
class Peer:
    """llama.cpp in another Python environment."""

    python: str
    folder: Path

    def run(self, **job: Any) -> Path:
        """Return the output of the job."""
        out = self.folder / ("out.json" if "texts" in job else "out.npz")
        file = self.folder / "job.json"
        file.write_text(json.dumps({**job, "out": str(out)}))
        command = [self.python, "-m", "benchmarks.gguf_llama", str(file)]
        subprocess.run(command, check=True, cwd=Path(__file__).parents[1])
        return out


def conversations(llm: LLM, count: int) -> tuple[list[list[int]], list[list[int]]]:
    """Return token ids of conversations with their answers, and of prompts."""
    items = [item for number in heldout.SETS for item in heldout.read(number)]
    chosen = items[:: max(1, len(items) // count)][:count]
    windows = [
        llm.encode_chat(
            [*item.messages, {"role": "assistant", "content": item.answer}],
            add_generation_prompt=False,
        )
        for item in chosen
    ]
    return windows, [llm.encode_chat(list(item.messages)) for item in chosen[:PROMPTS]]


def make_file(type: str, peer: Peer) -> Path:
    """Return the model's file of that type, written at the first call."""
    file = peer.folder / f"{type}.gguf"
    if file.exists():
        return file
    if type in OWN:
        galley = [sys.executable, "-m", "galley", "quantize", MODEL, str(file)]
        options = ["--format", "gguf", "--nearest-tokenizer", *OWN[type]]
        subprocess.run([*galley, *options], check=True, capture_output=True)
    else:
        source = str(peer.folder / "BF16.gguf")
        peer.run(weight_dtype={"source": source, "target": str(file), "type": type})
    return file


def dequantized(file: Path, target: Path) -> Path:
    """Write a file with the values that the gguf package reads from ``file``, as float32; return it."""
    import gguf
    from gguf.quants import dequantize

    reader = gguf.GGUFReader(file)
    metadata = read_gguf(file).metadata
    tensors = [
        Outgoing(
            str(tensor.name),
            "F32",
            tuple(int(n) for n in reversed(tensor.shape)),
            partial(_float_bytes, dequantize, tensor.data, tensor.tensor_type),
        )
        for tensor in reader.tensors
    ]
    write_gguf(target, metadata, tensors)
    return target


def _float_bytes(dequantize: Any, data: Any, type: Any) -> Any:
    values = np.ascontiguousarray(dequantize(data, type), np.float32)
    return values.reshape(-1).view(np.uint8)


def galleys(file: Path, windows: Sequence[Sequence[int]], activations: str) -> list[Any]:
    """Return the logits of all positions of each window; keys and values are float32, as in the peer."""
    settings = EngineSettings(
        activations=activations,  # type: ignore[arg-type]
        kv_dtype="float32",
        weight_dtype="auto" if file.stem in ("BF16", "F16") else "float32",
        weight_cache=False,
    )
    with TeacherForced(settings, file, longest=max(map(len, windows))) as model:
        return [np.concatenate([x.copy() for _, x in model.logits(w)]) for w in windows]


def divergence(windows: Sequence[Sequence[int]], base: Any, other: Sequence[Any]) -> float:
    """Return the mean KL(base || other)."""
    found = Divergence()
    for i, window in enumerate(windows):
        found.add(base[f"window {i}"], other[i], following([window]))
    return found.loss().kl


def same_answers(file: Path, prompts: Sequence[list[int]], theirs: Any) -> str:
    """Return how many answers match the peer's token for token, up to the token that ends them."""
    ends = open_checkpoint(file).eos_token_ids
    greedy = SamplingParams(temperature=0.0, max_tokens=STEPS, ignore_eos=True)
    with LLM(str(file), activations="float32", kv_dtype="float32", weight_cache=False) as llm:
        said = [output.token_ids for output in llm.generate(prompts, greedy)]
    pairs = zip(said, theirs, strict=True)
    equal = sum(_until(ours, ends) == _until(row, ends) for ours, row in pairs)
    return f"{equal} of {len(said)}"


def _until(ids: Sequence[int], ends: Sequence[int]) -> list[int]:
    """Cut an answer after its end token: the model was not trained on what follows."""
    answer = [int(token) for token in ids]
    return answer[: next((i for i, token in enumerate(answer) if token in ends), len(answer))]


def compare(type: str, peer: Peer, windows: list[list[int]], prompts: list[list[int]]) -> list[str]:
    """Return a row of the table."""
    file = make_file(type, peer)
    truth = np.load(
        peer.run(
            model=str(dequantized(file, peer.folder / "truth.gguf")),
            windows=windows,
            prompts=prompts,
            steps=STEPS,
        )
    )
    truth = {name: truth[name] for name in truth.files}
    found = np.load(peer.run(model=str(file), windows=windows, prompts=prompts, steps=STEPS))
    theirs = {name: found[name] for name in found.files}
    exact = galleys(file, windows, "float32")
    usual = galleys(file, windows, "auto")
    each = [theirs[f"window {i}"] for i in range(len(windows))]
    figures = [
        divergence(windows, truth, exact),
        divergence(windows, truth, usual),
        divergence(windows, truth, each),
        divergence(windows, theirs, usual),
    ]
    return [
        type,
        *(f"{value:.1e}" for value in figures),
        same_answers(file, prompts, truth["said"]),
        same_answers(file, prompts, theirs["said"]),
    ]


def tokenizers(peer: Peer, count: int) -> list[list[str]]:
    """Return rows with the number of strings that give the same tokens, by kind of tokenizer."""
    source = random.Random(0)
    strings = ["".join(source.choices(WORDS, k=source.randrange(1, 12))) for _ in range(count)]
    folders = {
        pre: trained.byte_level(peer.folder / pre, split=split)
        for pre, split in trained.SPLITS.items()
    }
    folders["SentencePiece"] = trained.sentencepiece(peer.folder / "pieces", complete=True)
    sizes = {
        key: value
        for key, value in read_gguf(peer.folder / "BF16.gguf").metadata.items()
        if key.startswith(("llama.", "general."))
    }
    rows = []
    for name, folder in folders.items():
        tokenizer = Tokenizer.load(folder)
        made = vocabulary_of(folder, tokenizer.vocab_size)
        assert not made.differs, made.differs
        file = peer.folder / f"{name}.gguf"
        write_gguf(file, {**sizes, "llama.vocab_size": tokenizer.vocab_size, **made.metadata}, [])
        texts = strings
        if name == "qwen2":  # llama.cpp does not apply NFC
            texts = [unicodedata.normalize("NFC", text) for text in strings]
        theirs = json.loads(peer.run(model=str(file), texts=texts).read_text())
        pairs = zip(texts, theirs, strict=True)
        equal = [tokenizer.encode(text) == ids for text, ids in pairs]
        rows.append([name, f"{sum(equal)} of {count}"])
        rows[-1].append("" if all(equal) else repr(texts[equal.index(False)]))
    return rows


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--llama", required=True, help="interpreter that has llama-cpp-python")
    parser.add_argument("--windows", type=int, default=48)
    parser.add_argument("--strings", type=int, default=10_000)
    parser.add_argument("--types", nargs="*", default=[*dict.fromkeys([*OWN, *FILE_TYPES])])
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        peer = Peer(wanted.llama, Path(folder))
        with LLM(MODEL) as llm:
            windows, prompts = conversations(llm, wanted.windows)
        header = (
            "type",
            *("truth, Galley float32", "truth, Galley", "truth, llama.cpp", "llama.cpp, Galley"),
            *("answers of the truth", "answers of llama.cpp"),
        )
        make_file("BF16", peer)
        rows = [compare(name, peer, windows, prompts) for name in wanted.types]
        tokens = sum(map(len, windows))
        print(
            f"mean KL over {tokens} positions; answers of {STEPS} tokens at most (activations float32)"
        )
        print(table(header, rows))
        print()
        print(
            table(
                ("tokenizer", "same tokens", "first difference"), tokenizers(peer, wanted.strings)
            )
        )


if __name__ == "__main__":
    main()
