"""Measure the cost of structured output: masks of a large vocabulary, and steps with and without grammars.

    python -m benchmarks.grammar [--vocabulary 128000] [--schemas FOLDER] [--texts 2]
    python -m benchmarks.grammar --model FOLDER --weight-dtype int4 --batch 32 [--tokens 128] [--rounds 5]

The first form samples texts that follow each schema of a folder (for example a checkout of the
SchemaStore's ``src/schemas/json``; by default the schemas of the tests) with a generated vocabulary. Tokens
are drawn from those that the mask allows, closing tokens more often, so that texts end. Prints the share of
schemas that compile, the share of texts that satisfy their schema, and the time per mask.

The second form runs one batch of a model alternately without grammars and with one per sequence that allows
any line of words, and prints how much longer a step takes.
"""

import argparse
import json
import random
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import numpy as np
from llguidance import LLMatcher, LLTokenizer
from numpy.typing import NDArray
from tests.grammar.schemas import SCHEMAS

from galley import LLM, RequestError, SamplingParams
from galley.grammar.check import LIMITS, check
from galley.grammar.matcher import GrammarMatcher
from galley.grammar.vocabulary import load_vocabulary
from galley.types import Grammar

EOS = 0
MOST_TOKENS = 1500
CLOSING = ('"', "}", "]", ",", ":", "0", "1", "true", "null", '",', '"}', '":')


def make_vocabulary(folder: Path, size: int) -> None:
    """Write a byte-level ``tokenizer.json`` with words, with and without spaces, and JSON's punctuation."""
    rng = random.Random(0)
    letters = "etaoinshrdlcumwfgypbvkjxqz"
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    spelled = {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(others)}
    tokens = {"<|end|>": EOS}
    for text in (*map(chr, range(128)), *CLOSING):
        tokens.setdefault("".join(spelled[byte] for byte in text.encode()), len(tokens))
    for byte in range(256):
        tokens.setdefault(spelled[byte], len(tokens))
    while len(tokens) < size:
        length = min(12, max(2, round(rng.gauss(6, 2.5))))
        word = "".join(rng.choices(letters, weights=range(26, 0, -1), k=length))
        before = rng.choices(["", " ", ' "', "\n", ", "], weights=[40, 50, 4, 2, 4])[0]
        word = before + (word.capitalize() if rng.random() < 0.2 else word)
        tokens.setdefault("".join(spelled[byte] for byte in word.encode()), len(tokens))
    level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    end = {"id": EOS, "content": "<|end|>", "special": True, "normalized": False}
    flags = {"single_word": False, "lstrip": False, "rstrip": False}
    content = {
        "version": "1.0",
        "added_tokens": [end | flags],
        "pre_tokenizer": level,
        "decoder": level,
        "model": {"type": "BPE", "vocab": tokens, "merges": []},
    }
    (folder / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")


def schemas_of(folder: Path | None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield names and schemas; those of the tests if no folder is given."""
    if folder is None:
        yield from ((str(i), schema) for i, schema in enumerate(SCHEMAS))
        return
    for path in sorted(folder.rglob("*.json")):
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            continue
        if isinstance(value, dict):
            yield path.name, value


class Follower:
    """Samples texts that follow a grammar, and times each mask."""

    def __init__(self, vocabulary: LLTokenizer) -> None:
        self._vocabulary = vocabulary
        self._size = vocabulary.vocab_size
        self._closing = [vocabulary.tokenize_str(text)[0] for text in CLOSING]
        self._rng = np.random.default_rng(0)
        self.seconds: list[float] = []

    def compiled(self, notation: str) -> LLMatcher:
        """Compile a grammar; each text takes a copy, as in the engine."""
        return LLMatcher(self._vocabulary, notation, log_level=0, limits=LIMITS)

    def text(self, compiled: LLMatcher) -> str | None:
        """Sample a whole text; None if it has not ended after ``MOST_TOKENS`` or the grammar failed."""
        followed = GrammarMatcher(compiled.deep_copy(), self._size, None)
        mask: NDArray[np.float32] = followed.empty_masks(1)[0]
        tokens: list[int] = []
        while len(tokens) < MOST_TOKENS and not followed.ended:
            began = time.perf_counter()
            followed.fill((), [mask])
            self.seconds.append(time.perf_counter() - began)
            token = self._draw(mask)
            if not followed.accept(token):
                return None
            tokens.append(token)
        whole = followed.ended and followed.error is None
        return self._vocabulary.decode_str([t for t in tokens if t != EOS]) if whole else None

    def _draw(self, mask: NDArray[np.float32]) -> int:
        if mask[EOS] == 0:
            return EOS
        closing = [token for token in self._closing if mask[token] == 0]
        if closing and self._rng.random() < 0.6:
            return int(self._rng.choice(closing))
        return int(self._rng.choice(np.flatnonzero(mask == 0)))


def measure_masks(size: int, folder: Path | None, texts: int) -> None:
    """Print how many schemas compile, how many texts are valid, and the time of a mask."""
    with tempfile.TemporaryDirectory() as made:
        make_vocabulary(Path(made), size)
        began = time.perf_counter()
        vocabulary = load_vocabulary(Path(made), vocab_size=size, eos_token_ids=[EOS])
    print(f"vocabulary of {size} tokens read in {time.perf_counter() - began:.2f} s")
    follower = Follower(vocabulary)
    refused: Counter[str] = Counter()
    count = compiled = whole = valid = 0
    compile_seconds: list[float] = []
    for name, schema in schemas_of(folder):
        count += 1
        began = time.perf_counter()
        try:
            grammar = check(Grammar("json_schema", json.dumps(schema)), vocabulary, "schema")
        except RequestError as error:
            refused[str(error).partition(" (at ")[0][:70]] += 1
            continue
        compile_seconds.append(time.perf_counter() - began)
        compiled += 1
        matcher = follower.compiled(grammar.source)
        for _ in range(texts):
            text = follower.text(matcher)
            if text is None:
                continue
            whole += 1
            good = jsonschema_rs.is_valid(schema, json.loads(text))
            valid += good
            if not good:
                print(f"not valid: {name}: {text[:200]}")
    print(f"{compiled} of {count} schemas compile ({compiled / count:.1%})")
    for reason, times in refused.most_common(12):
        print(f"  {times:4}  {reason}")
    print(f"compiling: {1e3 * statistics.median(compile_seconds):.1f} ms median", end=", ")
    print(f"{1e3 * max(compile_seconds):.0f} ms at most")
    print(f"{valid} of {whole} whole texts are valid; {compiled * texts - whole} did not end")
    spans = sorted(1e6 * second for second in follower.seconds)
    print(f"masks: {len(spans)}, mean {statistics.mean(spans):.1f} us", end=", ")
    print(", ".join(f"{q} % {spans[int(len(spans) * q / 100)]:.0f} us" for q in (50, 90, 99)))


def measure_batch(model: str, weight_dtype: Any, batch: int, tokens: int, rounds: int) -> None:
    """Print the time of a step with and without grammars."""
    # A grammar that allows any line of words, so that texts have the same length with and without it.
    grammar = Grammar("regex", r"[^\x00]{100000}")
    times: dict[str, list[float]] = {"without": [], "with": []}
    with LLM(model, weight_dtype=weight_dtype, kv_cache_tokens=batch * (tokens + 64)) as llm:
        for _ in range(rounds + 1):
            for name, one in (("without", None), ("with", grammar)):
                params = [
                    SamplingParams(
                        temperature=1.0,
                        seed=seed,
                        max_tokens=tokens,
                        ignore_eos=one is None,
                        grammar=one,
                    )
                    for seed in range(batch)
                ]
                began = time.perf_counter()
                answers = llm.generate([[5, 6, 7 + i] for i in range(batch)], params)
                made = sum(len(answer.token_ids) for answer in answers)
                times[name].append((time.perf_counter() - began) / made * batch)
    steps = {name: 1e3 * statistics.median(seconds[1:]) for name, seconds in times.items()}
    more = steps["with"] / steps["without"] - 1
    print(f"batch of {batch}: {steps['without']:.2f} ms a step without grammars", end=", ")
    print(f"{steps['with']:.2f} ms with ({more:+.1%})")


def main() -> None:
    """Measure and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--vocabulary", type=int, default=128_000)
    parser.add_argument("--schemas", type=Path)
    parser.add_argument("--texts", type=int, default=2)
    parser.add_argument("--model")
    parser.add_argument("--weight-dtype", default="int4")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    if arguments.model is None:
        measure_masks(arguments.vocabulary, arguments.schemas, arguments.texts)
    else:
        measure_batch(
            arguments.model,
            arguments.weight_dtype,
            arguments.batch,
            arguments.tokens,
            arguments.rounds,
        )


if __name__ == "__main__":
    main()
