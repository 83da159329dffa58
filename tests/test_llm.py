"""``galley.LLM`` as a library user sees it."""

import json
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest
from safetensors.torch import load_file, save_file

import galley
from galley import LLM, RequestOutput, SamplingParams
from galley.errors import (
    ContextExceeded,
    EngineError,
    ModelError,
    ModelNotFound,
    RequestError,
    SettingsError,
)
from tests.conftest import CheckpointMaker
from tests.engines import native

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)


def test_every_public_name_is_there() -> None:
    for name in galley.__all__:
        assert getattr(galley, name) is not None
    with pytest.raises(AttributeError):
        _ = galley.nothing


def test_texts_token_ids_and_parameters_mix(checkpoint: CheckpointMaker) -> None:
    with LLM(checkpoint("llama"), threads=1) as llm:
        ids = llm.tokenizer.encode("the cat")
        short = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True, logprobs=2)
        prompts: list[str | list[int]] = ["the cat", ids]
        outputs = llm.generate(prompts, [GREEDY, short])
        assert all(isinstance(output, RequestOutput) for output in outputs)
        first, second = outputs
        assert first.token_ids[:3] == second.token_ids
        assert first.text == llm.tokenizer.decode(first.token_ids)
        assert (first.prompt_tokens, first.finish_reason) == (len(ids), "length")
        assert first.logprobs is None
        assert second.logprobs is not None
        assert [entry.token for entry in second.logprobs] == second.token_ids
        assert 0 <= first.timing.queued <= first.timing.first_token <= first.timing.total
        assert [o.token_ids for o in llm.generate("the cat", GREEDY)] == [first.token_ids]
        assert [o.token_ids for o in llm.generate(ids, GREEDY)] == [first.token_ids]
        assert llm.generate([], GREEDY) == []


def test_prompt_logprobs_are_the_score(checkpoint: CheckpointMaker) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=2, prompt_logprobs=1)
    with LLM(checkpoint("qwen3"), threads=1, max_batch_tokens=16) as llm:
        ids = list(range(10, 60))
        for _ in range(2):
            output = llm.generate([ids], params)[0]
            assert output.prompt_logprobs is not None
            assert [e.token for e in output.prompt_logprobs] == ids[1:]
            assert [[e.logprob for e in output.prompt_logprobs]] == llm.score([ids])
            assert output.cached_tokens == 0


def test_stop_strings_end_the_text_and_the_work(checkpoint: CheckpointMaker) -> None:
    long = SamplingParams(temperature=0.0, max_tokens=300, ignore_eos=True)
    with LLM(checkpoint("llama"), threads=1) as llm:
        whole = llm.generate(["the"], long)[0].text
        stop = whole[20:23]
        params = SamplingParams(temperature=0.0, max_tokens=300, ignore_eos=True, stop=(stop,))
        steps = llm._engine.stats.steps
        output = llm.generate(["the"], params)[0]
        assert output.text == whole[: whole.index(stop)]
        assert output.finish_reason == "stop"
        assert llm._engine.stats.steps - steps < 60
        assert llm._engine.stats.kv_used_blocks == 0


def test_streams_can_be_dropped_or_left_open(checkpoint: CheckpointMaker) -> None:
    messages = [{"role": "user", "content": "hello"}]
    with LLM(checkpoint("llama"), threads=1) as llm:
        whole = llm.chat(messages, GREEDY)[0]
        deltas = list(llm.chat_stream(messages, GREEDY))
        assert "".join(delta.text for delta in deltas) == whole.text
        assert deltas[-1].finish_reason == "length"
        dropped = llm.chat_stream(messages, GREEDY)
        next(dropped)
        dropped.close()  # type: ignore[attr-defined]
        assert llm._engine.stats.kv_used_blocks == 0
        suspended = llm.chat_stream(messages, GREEDY)
        texts = [next(suspended).text]
        assert llm.chat([messages, messages], GREEDY)[1].text == whole.text
        texts += [delta.text for delta in suspended]
        assert "".join(texts) == whole.text
        # One token per step: cached answers might arrive at once.
        slowly = msgspec.structs.replace(GREEDY, speculation="off")
        left_open = llm.chat_stream(messages, slowly)
        next(left_open)
    with pytest.raises(EngineError, match="closed"):
        list(left_open)


def test_a_stream_is_checked_before_it_begins(checkpoint: CheckpointMaker) -> None:
    with LLM(checkpoint("llama"), threads=1) as llm, pytest.raises(RequestError, match="n must be"):
        llm.chat_stream([{"role": "user", "content": "x"}], SamplingParams(n=2))


def test_threads_share_the_batch(checkpoint: CheckpointMaker) -> None:
    long = SamplingParams(temperature=0.0, max_tokens=500, ignore_eos=True)
    with LLM(checkpoint("llama"), threads=1) as llm:
        expected = llm.generate([[5, 6]], long)[0].token_ids
        steps = llm._engine.stats.steps
        results: list[list[int]] = []
        start = threading.Barrier(4)

        def work() -> None:
            start.wait()
            results.append(llm.generate([[5, 6]], long)[0].token_ids)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert results == [expected] * 4
        # One after another they would take four times as many steps as one alone.
        assert llm._engine.stats.steps - steps < 4 * steps


def test_an_interrupted_step_leaves_no_false_prefixes(
    checkpoint: CheckpointMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = list(range(10, 60))
    with LLM(checkpoint("llama"), threads=1) as llm:
        expected = llm.generate([prompt], GREEDY)[0].token_ids
    with LLM(checkpoint("llama"), threads=1) as llm:

        def interrupted(batch: object, sampling: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(native(llm._engine)._executor, "execute", interrupted)
            with pytest.raises(KeyboardInterrupt):
                llm.generate([prompt], GREEDY)
        output = llm.generate([prompt], GREEDY)[0]
        assert (output.token_ids, output.cached_tokens) == (expected, 0)
        assert llm.generate([prompt], GREEDY)[0].cached_tokens == 48
        native(llm._engine).check_blocks()


def test_logits_that_leave_no_choice_are_an_error_of_one_request(
    checkpoint: CheckpointMaker, tmp_path: Path
) -> None:
    """NaN in the embedding of one token breaks only the prompts that contain it."""
    folder = tmp_path / "nan"
    shutil.copytree(checkpoint("llama"), folder)
    weights = load_file(folder / "model.safetensors")
    weights["model.embed_tokens.weight"][77] = float("nan")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    for params in (GREEDY, SamplingParams(max_tokens=12, seed=1, ignore_eos=True)):
        with LLM(folder, threads=1) as llm:
            broken, fine = llm.generate([[5, 77, 6], [5, 6]], params)
            assert (broken.finish_reason, broken.token_ids) == ("error", [])
            assert broken.error is not None
            assert "NaN" in broken.error
            assert (fine.finish_reason, fine.error) == ("length", None)


def test_bad_requests_run_nothing(checkpoint: CheckpointMaker) -> None:
    with LLM(checkpoint("llama"), threads=1, max_model_len=64) as llm:
        good = [5, 6, 7]
        for bad in ([], [320], [-1], [5] * 64):
            with pytest.raises(RequestError):
                llm.generate([good, bad], GREEDY)
        with pytest.raises(ContextExceeded):
            llm.generate([good], SamplingParams(max_tokens=62))
        with pytest.raises(RequestError):
            llm.generate([good], [GREEDY, GREEDY])
        with pytest.raises(RequestError):
            llm.score([good, []])
        assert llm._engine.stats.steps == 0
        assert (
            len(llm.generate([good], SamplingParams(temperature=0, ignore_eos=True))[0].token_ids)
            == 61
        )


def test_a_checkpoint_without_tokenizer_takes_token_ids(
    checkpoint: CheckpointMaker, tmp_path: Path
) -> None:
    folder = tmp_path / "bare"
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        (folder / name).write_bytes((checkpoint("llama") / name).read_bytes())
    with LLM(folder, threads=1) as bare, LLM(checkpoint("llama"), threads=1) as full:
        expected = full.generate([[5, 6]], GREEDY)[0]
        output = bare.generate([[5, 6]], GREEDY)[0]
        assert (output.token_ids, output.text) == (expected.token_ids, "")
        with pytest.raises(ModelError, match=r"no tokenizer\.json"):
            bare.generate(["text"], GREEDY)
        with pytest.raises(RequestError, match="stop strings need one"):
            bare.generate([[5]], SamplingParams(stop=("x",)))


def test_wrong_settings_and_models_say_so(checkpoint: CheckpointMaker, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound):
        LLM(tmp_path / "nothing")
    with pytest.raises(
        SettingsError, match="executor: 'fast' is not one of auto, cpu, gpu, reference"
    ):
        LLM(checkpoint("llama"), executor="fast")  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="max_model_len"):
        LLM(checkpoint("llama"), max_model_len=10**6)
    with pytest.raises(SettingsError, match="max_running"):
        LLM(checkpoint("llama"), max_batch_tokens=8, max_running=9)
    with pytest.raises(
        SettingsError, match="dtype: 'float16' is not one of auto, float32, bfloat16"
    ):
        LLM(checkpoint("llama"), dtype="float16")  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="cannot use device 'nonsense'"):
        LLM(checkpoint("llama"), device="nonsense")
    with pytest.raises(SettingsError, match="unknown setting 'nonsense'; known: activations, "):
        LLM(checkpoint("llama"), nonsense=1)


def test_a_closed_llm_refuses(checkpoint: CheckpointMaker) -> None:
    llm = LLM(checkpoint("llama"), threads=1)
    llm.close()
    llm.close()
    with pytest.raises(EngineError, match="closed"):
        llm.generate([[5]], GREEDY)


def test_nothing_is_left_running(checkpoint: CheckpointMaker) -> None:
    """A script that never closes the LLM still exits, and has no child processes."""
    script = f"""
import json, psutil
from galley import LLM, SamplingParams
llm = LLM({str(checkpoint("llama"))!r}, threads=1)
out = llm.generate([[5, 6]], SamplingParams(temperature=0, max_tokens=2))
print(json.dumps([len(out[0].token_ids), len(psutil.Process().children())]))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    tokens, children = json.loads(done.stdout)
    assert tokens in (1, 2)
    assert children == 0
