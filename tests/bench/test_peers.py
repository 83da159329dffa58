"""The comparison with peers: the requests, the handling of answers, and which peers are left out."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.peers import galley, galley_lookup
from benchmarks.peers.chain import next_token, predicting_prompt
from benchmarks.peers.checkpoint import COMMON, SHAPES, write_checkpoint, write_shape
from benchmarks.peers.child import Child
from benchmarks.peers.compare import Comparison, Work, compare, works
from benchmarks.peers.gguf_file import gguf_name, tensors_of, write_gguf
from benchmarks.peers.install import PeerFailed
from benchmarks.peers.protocol import Peer
from gguf import GGUFReader

from galley import LLM, SamplingParams


class Scripted:
    """A contender whose step takes ``seconds``; it dies at measurement number ``dies_at``."""

    def __init__(self, seconds: float, dies_at: int = 1000) -> None:
        self.requests: list[tuple[int, int, int]] = []
        self._seconds, self._dies_at = seconds, dies_at

    def measure(self, prompts: Sequence[list[int]], steps: int) -> list[float]:
        self.requests.append((len(prompts), len(prompts[0]), steps))
        if len(self.requests) == self._dies_at:
            raise PeerFailed("gone")
        # The first step of a decode is the warm-up, and slow.
        return [self._seconds * (9 if steps and i == 0 else 1) for i in range(steps or 1)]


def run(contenders: Any, rounds: int = 3) -> tuple[Comparison, list[tuple[str, str]]]:
    comparison = Comparison(works(prompt=8, context=4, steps=5, batches=(1, 2)))
    order: list[tuple[str, str]] = []
    compare(
        contenders,
        comparison,
        rounds=rounds,
        vocab_size=10,
        on_answer=lambda name, work: order.append((name, work.name)),
    )
    return comparison, order


def test_rates_and_ratios_are_those_of_the_steps_after_the_first() -> None:
    comparison, _ = run(
        {"galley int4": Scripted(0.5), "slow a": Scripted(2.0), "quick b": Scripted(1.0)}
    )
    prefill, one, two = comparison.works
    assert comparison.rates["slow a"] == {
        "prefill 8": [4.0] * 3,
        "decode x 1": [0.5] * 3,
        "decode x 2": [1.0] * 3,
    }
    assert comparison.best_peer(two) == "quick b"
    assert [comparison.ratio("galley int4", w) for w in (prefill, one, two)] == [2.0] * 3


def test_contenders_take_turns_at_the_same_work_after_a_short_round() -> None:
    first, second = Scripted(1.0), Scripted(1.0)
    _, order = run({"galley int4": first, "peer a": second}, rounds=1)
    assert order[:4] == [
        ("galley int4", "prefill 8"),
        ("peer a", "prefill 8"),
        ("galley int4", "decode x 1"),
        ("peer a", "decode x 1"),
    ]
    assert first.requests == second.requests
    assert first.requests == [(1, 8, 0), (1, 4, 3), (2, 4, 3), (1, 8, 0), (1, 4, 6), (2, 4, 6)]


def test_a_contender_that_fails_is_named_and_left_out() -> None:
    broken = Scripted(0.1, dies_at=5)
    comparison, _ = run({"galley int4": Scripted(1.0), "peer a": broken, "peer b": Scripted(2.0)})
    assert comparison.failures == {"peer a": "decode x 1: gone"}
    assert len(broken.requests) == 5
    assert comparison.best_peer(comparison.works[0]) == "peer b"


def test_without_peers_there_is_no_ratio() -> None:
    comparison, _ = run({"galley int4": Scripted(1.0)})
    assert comparison.ratio("galley int4", Work(1, 8, 0)) is None


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("peers") / "tiny"
    write_checkpoint(folder, COMMON | SHAPES["tiny"])
    return folder


def test_a_generated_checkpoint_is_one_that_galley_runs(checkpoint: Path, tmp_path: Path) -> None:
    qwen = COMMON | SHAPES["qwen2-0.5b"] | {"vocab_size": 300, "num_hidden_layers": 1}
    write_checkpoint(tmp_path / "qwen", qwen)
    for folder in (checkpoint, tmp_path / "qwen"):
        with LLM(folder, threads=1) as llm:
            params = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True)
            output = llm.generate("a b", params)[0]
            assert output.prompt_tokens == 3
            assert len(output.token_ids) == 3


def test_a_childs_process_answers_and_says_when_it_cannot(checkpoint: Path, tmp_path: Path) -> None:
    child = Child(galley.PEER, "bf16", checkpoint, threads=1, home=tmp_path)
    try:
        assert len(child.measure([[1, 2, 3]], 0)) == 1
        assert len(child.measure([[1, 2, 3], [4, 5, 6]], 4)) == 4
        with pytest.raises(PeerFailed, match="died"):
            child.measure([[999_999]], 0)
    finally:
        child.close()
    with pytest.raises(PeerFailed, match="died"):
        Child(galley.PEER, "bf16", tmp_path / "nothing", threads=1, home=tmp_path)
    assert "does not exist" in (tmp_path / "log" / "galley.txt").read_text()


def test_every_peer_has_the_formats_it_competes_with() -> None:
    from benchmarks.peers import llama_cpp, openvino_genai, vllm_cpu

    peers: list[Peer] = [galley.PEER, llama_cpp.PEER, openvino_genai.PEER, vllm_cpu.PEER]
    competing = {bits: [p.name for p in peers if p.variants.get(bits)] for bits in (4, 8, 16)}
    assert competing[4] == competing[8] == ["galley", "llama_cpp", "openvino_genai"]
    assert competing[16] == ["galley", "llama_cpp", "openvino_genai", "vllm_cpu"]


def test_gguf_names_are_llama_cpps(checkpoint: Path) -> None:
    assert gguf_name("model.embed_tokens.weight") == "token_embd.weight"
    assert gguf_name("model.layers.13.self_attn.q_proj.bias") == "blk.13.attn_q.bias"
    assert gguf_name("model.layers.0.mlp.down_proj.weight") == "blk.0.ffn_down.weight"
    assert gguf_name("model.layers.2.mlp.experts.7.up_proj.weight") == "blk.2.ffn_up_exps.weight"
    names = [name for name, _ in tensors_of(checkpoint / "model.safetensors")]
    assert len({gguf_name(name) for name in names}) == len(names)


@pytest.mark.parametrize(
    ("shape", "architecture", "experts"),
    [("tiny", "llama", 0), ("tiny-mixtral", "llama", 4), ("tiny-qwen3-moe", "qwen3moe", 8)],
)
def test_a_gguf_has_every_tensor_of_the_checkpoint(
    shape: str, architecture: str, experts: int, tmp_path: Path
) -> None:
    write_checkpoint(tmp_path / "whole", COMMON | SHAPES[shape])
    write_gguf(tmp_path / "whole", tmp_path / "model.gguf")
    reader = GGUFReader(tmp_path / "model.gguf")
    field = reader.get_field("general.architecture")
    assert field is not None
    assert field.contents() == architecture
    got = {tensor.name: tensor for tensor in reader.tensors}
    stacked = {name for name in got if "_exps" in name}
    assert len(stacked) == (6 if experts else 0)
    total = 0
    for name, bits in tensors_of(tmp_path / "whole/model.safetensors"):
        tensor = got[gguf_name(name)]
        values = tensor.data.view(np.uint16 if tensor.data.dtype == np.uint8 else np.float32)
        total += bits.size
        if tensor.name in stacked:
            expert = int(name.split(".experts.")[1].split(".")[0])
            assert values.shape == (experts, *bits.shape)
            assert (values[expert] == bits).all()
        elif values.dtype == np.float32:
            assert (values.view(np.uint32) >> 16 == bits).all()
        else:  # llama's architecture orders the rows of queries and keys differently
            assert values.shape == bits.shape
            assert np.array_equal(np.sort(values, axis=0), np.sort(bits, axis=0))
    assert total == sum(int(np.prod(tensor.shape)) for tensor in reader.tensors)


def test_a_chain_models_text_is_known_and_predicted_by_its_prompt(tmp_path: Path) -> None:
    write_shape(tmp_path / "chain", "tiny-chain")
    vocab = SHAPES["tiny"]["vocab_size"]
    prompt, text = predicting_prompt(20, 0.5, vocab, seed=1)
    assert text == [next_token(token, vocab) for token in [prompt[-1], *text[:-1]]]
    copied = prompt[8:28]
    right = [a == b for a, b in zip(copied, text, strict=True)]
    assert {True, False} == set(right)
    assert not {token for token, ok in zip(copied, right, strict=True) if not ok} & set(text)
    child = Child(galley_lookup.PEER, "int4", tmp_path / "chain", threads=1, home=tmp_path)
    try:
        for draft_tokens in (0, 1):
            request = {"prompt": prompt, "tokens": len(text), "draft_tokens": draft_tokens}
            seconds, *said = child.ask(request)
            assert seconds > 0
            assert said == text
    finally:
        child.close()
