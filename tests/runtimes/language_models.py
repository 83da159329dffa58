"""Tiny language models in the formats of other libraries, and these libraries alone."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from galley.errors import RequestError
from galley.service.requests import expand
from galley.types import Output, SamplingParams
from tests.checkpoints import EOS, make_checkpoint
from tests.formats.gguf_files import write_gguf

CONTEXT: Final = 256

VOCABULARY: Final = 281
"""Tokens of the tokenizer: llama.cpp reads no model with more or fewer."""

EXACT: Final = '{"properties": {"KV_CACHE_PRECISION": "f32", "INFERENCE_PRECISION_HINT": "f32"}}'
"""Options with which OpenVINO computes in float32, so that a text does not depend on how it was batched."""


def random_ids(seed: int, length: int) -> list[int]:
    """Return token ids of these models, none of them special."""
    ids: list[int] = np.random.default_rng(seed).integers(3, VOCABULARY, length).tolist()
    return ids


PROMPTS: Final = [random_ids(seed, 5 + 3 * seed) for seed in range(12)]
GREEDY: Final = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)

ONE_TOKEN: Final[tuple[dict[str, Any], ...]] = (
    {"top_k": 1},
    {"top_p": 0.0},
    {"top_p": 1e-6},
    {"temperature": 1e-40},
    {"temperature": 1e-40, "top_k": 5},
)
"""Parameters that leave nothing but the likeliest token; a float32 is too small for 1 / 1e-40."""


def make_gguf(path: Path, metadata: Mapping[str, Any] = {}, **changes: Any) -> Path:
    """Write a random model in float16 as a GGUF file; ``metadata``: further keys of it."""
    folder = path.parent / f"{path.stem}-checkpoint"
    make_checkpoint(folder, "llama", vocab_size=VOCABULARY, **changes)
    return write_gguf(path, folder, "F16", metadata=dict(metadata))


def make_folder(folder: Path) -> Path:
    """Write a random model as a folder of safetensors, with heads of a width that vLLM has kernels for."""
    return make_checkpoint(folder, "llama", hidden_size=64, head_dim=32, num_attention_heads=2)


def generate(engine: Any, prompts: Sequence[list[int]], params: SamplingParams) -> list[list[int]]:
    """Return the output of each prompt, all of them in the engine at a time."""
    for number, prompt in enumerate(prompts):
        [request] = expand(prompt, params, engine.info, request_id=str(number))
        engine.add(request)
    outputs = run(engine)
    assert all(output[-1].error is None for output in outputs.values()), outputs
    return [tokens_of(outputs[f"{number}-0"]) for number in range(len(prompts))]


def generate_half(engine: Any) -> list[list[int]]:
    """Return the greedy outputs of :data:`PROMPTS`, those with even numbers aborted after one step."""
    for number, prompt in enumerate(PROMPTS):
        engine.add(expand(prompt, GREEDY, engine.info, request_id=str(number))[0])
    outputs = {output.request_id: [output] for output in engine.step()}
    engine.abort([f"{number}-0" for number in range(0, len(PROMPTS), 2)] + ["unknown"])
    for name, later in run(engine).items():
        outputs.setdefault(name, []).extend(later)
    return [tokens_of(outputs.get(f"{number}-0", [])) for number in range(len(PROMPTS))]


def resume(engine: Any, params: SamplingParams, delivered: list[int]) -> list[Output]:
    """Return the outputs of the first prompt after tokens that another engine delivered."""
    [request] = expand(PROMPTS[0], params, engine.info, request_id="a")
    resumed = request.payload.resumed(delivered, answered=True)
    engine.add(type(request)(id="a-0", payload=resumed))
    return run(engine)["a-0"]


def check_continues(engine: Any, params: SamplingParams = GREEDY) -> None:
    """Assert that a text goes on after its first tokens as if one engine had generated all of it."""
    [plain] = generate(engine, PROMPTS[:1], params)
    assert tokens_of(resume(engine, params, plain[:10])) == plain[10:]


def check_penalty_ends(engine: Any) -> None:
    """Assert that a text that began in another process fails if a penalty counts its output."""
    params = SamplingParams(temperature=0, max_tokens=24, presence_penalty=1.0)
    [output] = resume(engine, params, [7, 8])
    assert (output.finish_reason, output.refused) == ("error", False)
    assert "presence_penalty" in str(output.error)


def check_stops(engine: Any) -> None:
    """Assert that a stop token ends a text and is its last, and that the end has the text's times."""
    [plain] = generate(engine, PROMPTS[:1], GREEDY)
    stop = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, stop_token_ids=(plain[5],))
    [request] = expand(PROMPTS[0], stop, engine.info, request_id="a")
    engine.add(request)
    outputs = run(engine)["a-0"]
    assert tokens_of(outputs) == plain[: plain.index(plain[5]) + 1]
    assert outputs[-1].finish_reason == "stop"
    assert outputs[-1].timing is not None
    assert outputs[-1].timing.engine_seconds > 0
    assert EOS in engine.info.require_text().eos_token_ids


def check_draws(engine: Any, *likeliest: Mapping[str, Any], **hot: Any) -> None:
    """Assert that draws follow the parameters.

    Args:
        engine: the engine.
        likeliest: parameters besides :data:`ONE_TOKEN` with which it draws the likeliest token.
        hot: parameters with which texts differ, besides a temperature of 50.
    """
    [plain] = generate(engine, PROMPTS[:1], GREEDY)
    for only in (*ONE_TOKEN, *likeliest):
        params = SamplingParams(max_tokens=24, ignore_eos=True, **only)
        assert generate(engine, PROMPTS[:1], params) == [plain], only
    params = SamplingParams(**{"temperature": 50, "max_tokens": 24, "ignore_eos": True, **hot})
    texts = generate(engine, PROMPTS[:1] * 4, params)
    assert len({tuple(text) for text in texts}) == 4


def check_aborts(engine: Any) -> None:
    """Assert that aborted texts leave the others as they were, and nothing behind."""
    expected = generate(engine, PROMPTS, GREEDY)
    texts = generate_half(engine)
    assert texts[1::2] == expected[1::2]
    assert all(len(text) <= 1 for text in texts[::2])
    assert engine.stats.running == engine.stats.kv_used_blocks == 0


def check_refused(engine: Any, name: str, params: Mapping[str, Any]) -> None:
    """Assert that a request with one parameter is refused with an error that names the engine and it."""
    [param] = params
    with pytest.raises(RequestError, match=f"engine {name} does not support {param}") as error:
        expand(PROMPTS[0], SamplingParams(**params), engine.info, request_id="a")
    assert error.value.param == param


def run(engine: Any) -> dict[str, list[Output]]:
    """Step until there is no work; return the outputs by request."""
    outputs: dict[str, list[Output]] = {}
    while engine.has_work:
        for output in engine.step():
            outputs.setdefault(output.request_id, []).append(output)
    return outputs


def tokens_of(outputs: Sequence[Output]) -> list[int]:
    """Return the tokens of all outputs of a request."""
    return [token for output in outputs for token in output.tokens]


def openvino_alone(path: Path) -> Callable[[list[int], dict[str, Any]], list[int]]:
    """Return a function that continues one prompt with OpenVINO GenAI, given its own parameters."""
    openvino = pytest.importorskip("openvino", reason="extra openvino")
    genai = pytest.importorskip("openvino_genai", reason="extra openvino")
    scheduler = genai.SchedulerConfig()
    scheduler.num_kv_blocks = 64
    exact = {"KV_CACHE_PRECISION": "f32", "INFERENCE_PRECISION_HINT": "f32"}
    pipeline = genai.ContinuousBatchingPipeline(str(path), scheduler, "CPU", exact, {})

    def continued(prompt: list[int], parameters: dict[str, Any]) -> list[int]:
        config = genai.GenerationConfig(**parameters)
        ids = openvino.Tensor(np.array([prompt], dtype=np.int64))
        [result] = pipeline.generate([ids], [config])
        return list(result.m_generation_ids[0])

    return continued


def llama_cpp_alone(path: Path) -> Callable[[list[int], int], list[int]]:
    """Return a function that continues one prompt greedily with llama-cpp-python, by a number of tokens."""
    library = pytest.importorskip("llama_cpp", reason="extra llama-cpp")
    model = library.Llama(str(path), n_ctx=CONTEXT, n_threads=1, verbose=False)

    def continued(prompt: list[int], count: int) -> list[int]:
        model.reset()
        tokens = model.generate(prompt, temp=0.0, repeat_penalty=1.0)
        return [next(tokens) for _ in range(count)]

    return continued
