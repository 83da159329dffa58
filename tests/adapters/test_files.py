"""Files that are not adapters, or not for this model, or not low-rank products are refused by name."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from galley.errors import ModelError
from galley.formats.adapter import read_adapter
from galley.formats.adapter_files import adapter_digest
from tests.adapters.peft import PREFIX, make_adapter
from tests.conftest import CheckpointMaker
from tests.native.harness import program_of

Tensors = dict[str, torch.Tensor]
Q = f"{PREFIX}model.layers.0.self_attn.q_proj"


@pytest.fixture
def folder(checkpoint: CheckpointMaker, tmp_path: Path) -> Path:
    make_adapter(tmp_path / "fine", checkpoint("llama"), targets={"q_proj", "v_proj"})
    return tmp_path / "fine"


@pytest.fixture(scope="module")
def shapes(checkpoint: CheckpointMaker) -> Any:
    return program_of(checkpoint("llama")).shapes


def refusal(folder: Path, shapes: Any) -> str:
    with pytest.raises(ModelError) as refused:
        read_adapter(folder, shapes, 16)
    return str(refused.value)


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("use_dora", True, "'use_dora' is True"),
        ("bias", "lora_only", "'bias' is 'lora_only'"),
        ("modules_to_save", ["lm_head"], "'modules_to_save' is"),
        ("fan_in_fan_out", True, "'fan_in_fan_out' is True"),
        ("lora_bias", True, "'lora_bias' is True"),
        ("layer_replication", [[0, 2]], "'layer_replication'"),
        ("trainable_token_indices", [1], "'trainable_token_indices'"),
        ("target_parameters", ["experts"], "'target_parameters'"),
        ("a_field_of_tomorrow", 3, "'a_field_of_tomorrow' is 3"),
        ("init_lora_weights", "pissa_niter_4", "init_lora_weights is 'pissa_niter_4'"),
        ("peft_type", "IA3", "peft_type is 'IA3'"),
        ("r", 0, "r: is 0"),
        ("r", 8.0, "r: is 8.0"),
        ("r", True, "r: is True"),
        ("r", 4, r"lora_A.weight: has shape [8, 48], expected [4, 48] with rank 4"),
        ("lora_alpha", "16", "lora_alpha: is '16'"),
        ("lora_alpha", float("nan"), "lora_alpha: is nan"),
        ("use_rslora", "yes", "use_rslora: is 'yes'"),
        ("rank_pattern", {"q_proj": 17}, "has rank 17, but adapter_rank allows 16"),
        ("rank_pattern", {".*_proj": 4}, "rank_pattern: '.*_proj' is a regular expression"),
        ("rank_pattern", [], ""),
        ("alpha_pattern", {"q_proj": "x"}, "alpha_pattern: q_proj: is 'x'"),
        ("alpha_pattern", 3, "alpha_pattern: is 3"),
    ],
)
def test_what_a_config_asks_for_is_honored_or_refused(
    folder: Path, shapes: Any, field: str, value: Any, says: str
) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), field: value}))
    if says:
        assert says in refusal(folder, shapes)
    else:
        read_adapter(folder, shapes, 16)


def _shaped(name: str, *shape: int) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.update({name: torch.zeros(*shape)})


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            _shaped(f"{Q}.lora_A.weight", 8, 47),
            "has shape [8, 47], expected [8, 48] with rank 8",
        ),
        (_shaped(f"{Q}.lora_B.weight", 48, 8, 1), "expected [48, 8]"),
        (
            _shaped(f"{PREFIX}model.layers.2.self_attn.q_proj.lora_A.weight", 8, 48),
            "layers.2.self_attn.q_proj",
        ),
        (_shaped(f"{PREFIX}lm_head.lora_A.weight", 8, 48), "its other factor"),
        (
            _shaped(f"{PREFIX}model.embed_tokens.lora_embedding_A", 8, 48),
            "lora_embedding_A: is not a LoRA factor",
        ),
        (_shaped(f"{Q}.lora_magnitude_vector", 48), "lora_magnitude_vector: is not a LoRA factor"),
        (_shaped(f"{Q}.bias", 48), "q_proj.bias: is not a LoRA factor"),
        (lambda t: t.pop(f"{Q}.lora_B.weight"), "its other factor, lora_B.weight, is missing"),
        (lambda t: t[f"{Q}.lora_B.weight"].fill_(float("nan")), "not finite"),
        (lambda t: t.update({f"{Q}.lora_A.weight": torch.zeros(8, 48, dtype=torch.int8)}), "'I8'"),
        (lambda t: t.clear(), "contains no LoRA factors"),
    ],
)
def test_tensors_that_do_not_fit_the_model_are_refused(
    folder: Path, shapes: Any, change: Callable[[Tensors], object], says: str
) -> None:
    path = folder / "adapter_model.safetensors"
    tensors = dict(load_file(path))
    change(tensors)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
    known = {name: shape for name, shape in shapes.items() if "lm_head" not in says}
    assert says in refusal(folder, known)


def test_the_output_layer_takes_no_adapter(folder: Path, checkpoint: CheckpointMaker) -> None:
    from galley.graph.adapters import with_adapters

    program = with_adapters(program_of(checkpoint("llama")))
    assert "lm_head.weight" not in program.adapted
    assert len(program.adapted) == 14
    path = folder / "adapter_model.safetensors"
    factors = {f"{PREFIX}lm_head.lora_A.weight": torch.zeros(8, 48)}
    save_file({**load_file(path), **factors}, path)
    shapes = {name: program.shapes[name] for name in program.adapted}
    assert "no linear layer 'lm_head'" in refusal(folder, shapes)


def test_damaged_and_absent_files_are_refused(folder: Path, shapes: Any) -> None:
    tensors = folder / "adapter_model.safetensors"
    whole = tensors.read_bytes()
    tensors.write_bytes(whole[:-5])
    assert "truncated" in refusal(folder, shapes)
    tensors.rename(folder / "adapter_model.bin")
    assert "adapter_model.safetensors: cannot be read" in refusal(folder, shapes)
    with pytest.raises(ModelError, match="a pickle, is not supported"):
        adapter_digest(folder)
    (folder / "adapter_config.json").write_text("[]")
    assert "is not a JSON object" in refusal(folder, shapes)
    (folder / "adapter_config.json").unlink()
    with pytest.raises(ModelError, match=r"adapter_config.json: it does not exist"):
        adapter_digest(folder)
