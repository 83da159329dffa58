"""The key of an answer: a digest of all that shapes it."""

import hashlib
import sys
from typing import Final

import msgspec

from galley.types import Embed, EngineRequest, Generate, Predict, SamplingParams
from galley.types.model_info import ModelInfo

_FORMAT: Final = b"galley response 1"
"""Changes with the meaning of keys and entries: entries of other versions are never found."""

_NOT_THE_MODEL: Final = ("name", "path", "kv_cache_tokens", "costs", "phases", "ledger")
"""Fields of a :class:`ModelInfo` that describe the process or the machine and do not affect answers."""

_encoder: Final = msgspec.msgpack.Encoder(order="deterministic")


def digest(*parts: bytes) -> bytes:
    """Return a digest of the parts and their boundaries."""
    found = hashlib.blake2b(_FORMAT, digest_size=16)
    for part in parts:
        found.update(len(part).to_bytes(8, "little") + part)
    return found.digest()


def encoded(value: object) -> bytes:
    """Encode a plain value; equal values have equal bytes."""
    return _encoder.encode(value)


def model_identity(files: bytes, info: ModelInfo, program: str) -> bytes:
    """Return a digest of a model: its files, its types of numbers, and the program's version.

    Args:
        files: from :func:`galley.formats.model_files.files_digest`.
        info: the loaded model's description.
        program: the engine, its options and its version, any of which may change what is computed.
    """
    about = {n: v for n, v in msgspec.structs.asdict(info).items() if n not in _NOT_THE_MODEL}
    return digest(files, encoded(about), program.encode(), sys.byteorder.encode())


def request_key(identity: bytes, request: EngineRequest, *, shared_draws: bool = False) -> bytes:
    """Return the key of a request's answer.

    Args:
        identity: the model's.
        request: a request for a text, a vector or tensors, with its tenant's fields.
        shared_draws: whether requests share one random text; otherwise it is one of the request's seed.
    """
    payload, bias = request.payload, list[tuple[int, float]]()
    if isinstance(payload, Generate):
        bias = sorted(payload.sampling.logit_bias.items())
        sampling = _essential(payload.sampling, shared_draws, request.id)
        payload = msgspec.structs.replace(payload, sampling=sampling)
    return digest(identity, *_owner(request), encoded((payload, bias)))


def question_scope(
    identity: bytes, request: EngineRequest, context: bytes, *, shared_draws: bool = False
) -> bytes:
    """Return a digest of all that shapes the answer to a question, except its text.

    Args:
        identity: the model's.
        request: a request for a text.
        context: what is around the question, see :class:`galley.cache.question.Question`.
        shared_draws: as in :func:`request_key`.
    """
    assert isinstance(request.payload, Generate)
    sampling = _essential(request.payload.sampling, shared_draws, request.id)
    # What is left of the context depends on the question's length; the limit given is in ``context``.
    sampling = msgspec.structs.replace(sampling, max_tokens=None)
    bias = sorted(request.payload.sampling.logit_bias.items())
    return digest(identity, *_owner(request), context, encoded((sampling, bias)))


def _owner(request: EngineRequest) -> tuple[bytes, bytes, bytes]:
    """Return whose request it is, and the adapter it names."""
    adapter = "" if request.adapter is None else request.adapter.digest
    return request.tenant.encode(), request.cache_salt.encode(), adapter.encode()


def is_greedy(sampling: SamplingParams) -> bool:
    """Return whether nothing is drawn: the likeliest token is always chosen."""
    return sampling.temperature == 0 or sampling.top_k == 1 or sampling.top_p == 0


def is_cacheable(request: EngineRequest) -> bool:
    """Return whether a request is of a kind whose answers are stored."""
    return isinstance(request.payload, Generate | Embed | Predict)


def _essential(sampling: SamplingParams, shared_draws: bool, request_id: str) -> SamplingParams:
    """Return the parameters without those that do not shape the text."""
    seed = sampling.seed
    if is_greedy(sampling):
        seed = 0
    elif shared_draws:
        # The choices of one request stay different ones.
        seed = int(request_id.rpartition("-")[2])
    # The encoder sorts no keys that are numbers: the bias is encoded as a list.
    return msgspec.structs.replace(sampling, seed=seed, speculation="auto", logit_bias={})
