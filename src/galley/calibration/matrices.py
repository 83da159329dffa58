"""The matrices of a model that can be quantized, and the models that can."""

from galley.calibration.experts import expert_ops, expert_weights
from galley.engine.read_model import Model
from galley.errors import UnsupportedModel
from galley.graph.program import Program


def linear_weights(program: Program) -> list[str]:
    """Return the weights that only linear layers and experts read.

    Those of the embedding and the head are left out, as are routers and the gates of shared experts, where
    little is saved and much is lost.
    """
    embedded = {op.tensor("weight") for op in program.ops if op.name == "embed"}
    names = [name for op in program.ops if op.name == "linear" for name in op.weights["weight"]]
    left_out = {*embedded, *names[-1:], *program.routers}
    left_out |= {name for name in names if program.shapes[name][0] == 1}
    names += [name for op in expert_ops(program) for name in expert_weights(op)]
    return [name for name in names if name not in left_out]


def block_of(name: str) -> str:
    """Return ``model.layers.3`` of ``model.layers.3.mlp.down_proj.weight``; a name without number as is."""
    parts = name.split(".")
    number = next((i for i, part in enumerate(parts) if part.isdigit()), len(parts) - 1)
    return ".".join(parts[: number + 1])


def linear_names(name: str) -> list[str]:
    """Return transformers' names of a weight's layer: a head tied to the embedding is a separate layer.

    The head of GPT-NeoX has had two names.
    """
    if "embed_in" in name or "embed_out" in name:
        return ["embed_out.weight", "lm_head.weight"]
    return ["lm_head.weight"] if "embed" in name else [name]


def check_dense(model: Model, *, experts: bool = False) -> None:
    """Raise UnsupportedModel for a speech model, latent attention or quantized weights.

    Also for experts, unless they are supported.
    """
    if model.speech is not None:
        raise UnsupportedModel(
            "galley quantize supports language models only; this is a speech model"
        )
    signatures = [op.signature for op in model.program.ops]
    for what, found in (
        ("latent attention", any(s.apart and not s.routed for s in signatures)),
        ("experts", not experts and any(s.routed for s in signatures)),
    ):
        if found:
            raise UnsupportedModel(
                f"this model has {what}, which this command does not support; serve it with --weight-dtype "
                "int4 or int8, which round its matrices to nearest"
            )
    weights = model.weights
    for name in model.program.matrices:
        if not weights.info(name).kind.is_dense:
            raise UnsupportedModel(
                f"tensor {name} is {weights.info(name).kind} in the checkpoint; quantize the original, "
                "with weights in bf16, f16 or f32"
            )
    if not model.checkpoint.folder.is_dir():
        raise UnsupportedModel(
            f"{model.checkpoint.folder}: galley quantize needs a folder in Hugging Face's layout"
        )
