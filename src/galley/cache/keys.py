"""The key of an answer: a digest of all that shapes it."""

import glob
import hashlib
import sys
from pathlib import Path
from typing import Final

import msgspec

from galley.formats.gguf_file import is_gguf, split_files
from galley.machine import cache_folder
from galley.types import Embed, EngineRequest, Generate, Predict, SamplingParams
from galley.types.model_info import ModelInfo

_FORMAT: Final = b"galley response 1"
"""Changes with the meaning of keys and entries: entries of other versions are never found."""

_NOT_THE_MODEL: Final = ("name", "path", "kv_cache_tokens", "costs", "phases", "ledger")
"""What a :class:`ModelInfo` says about the process or the machine, not about answers."""

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
        files: from :func:`files_digest`.
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
    adapter = "" if request.adapter is None else request.adapter.digest
    return digest(
        identity,
        request.tenant.encode(),
        request.cache_salt.encode(),
        adapter.encode(),
        encoded((payload, bias)),
    )


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


class _Module(msgspec.Struct):
    """An element of sentence-transformers' ``modules.json``; ``path``: its folder."""

    path: str = ""


def _modules(folder: Path) -> list[Path]:
    """Return the folders of an embedding model's modules, whose weights are part of the model."""
    try:
        modules = msgspec.json.decode((folder / "modules.json").read_bytes(), type=list[_Module])
    except (OSError, RecursionError, msgspec.MsgspecError):
        return []
    names = sorted({module.path for module in modules} - {""})
    return [folder / name for name in names if Path(name).name == name and (folder / name).is_dir()]


class _FileState(msgspec.Struct, frozen=True):
    """A file as its digest was computed; ctime is included because no program sets it."""

    size: int
    mtime: int
    ctime: int
    digest: str


def files_digest(folder: Path) -> bytes:
    """Return a digest of the names and contents of a model's files.

    All of them are read, unless their digests are remembered: a second for each gigabyte or so.

    Args:
        folder: a checkpoint's folder, or a model's file.

    Raises:
        OSError: a file cannot be read.
    """
    if is_gguf(folder):
        files = list(split_files(folder))
    elif folder.is_dir():
        places = (folder, *_modules(folder))
        files = sorted(path for place in places for path in place.iterdir() if path.is_file())
    else:
        # An ONNX file, whose weights may be in others that begin with its name.
        files = sorted(folder.parent.glob(f"{glob.escape(folder.stem)}*"))
    memory = _memory_of(folder)
    known = _remembered(memory)
    base = folder if folder.is_dir() else folder.parent
    names = {str(path.relative_to(base)): path for path in files}
    found = {name: _state_of(path, known.get(name)) for name, path in names.items()}
    if memory is not None and found != known:
        _remember(memory, found)
    return digest(encoded({name: state.digest for name, state in found.items()}))


def _state_of(path: Path, known: _FileState | None) -> _FileState:
    status = path.stat()
    state = (status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    if known is not None and (known.size, known.mtime, known.ctime) == state:
        return known
    with path.open("rb") as file:
        content = hashlib.file_digest(file, "sha256").hexdigest()
    return _FileState(*state, content)


def _memory_of(folder: Path) -> Path | None:
    """Return the file that remembers the digests of a model's files; None without a cache folder."""
    try:
        name = hashlib.blake2b(str(folder.absolute()).encode(), digest_size=16).hexdigest()
        return cache_folder() / "digests" / f"{name}.json"
    except OSError:
        return None


def _remembered(memory: Path | None) -> dict[str, _FileState]:
    try:
        text = b"{}" if memory is None else memory.read_bytes()
        return msgspec.json.decode(text, type=dict[str, _FileState])
    except (OSError, msgspec.MsgspecError):
        return {}


def _remember(memory: Path, found: dict[str, _FileState]) -> None:
    """Write the digests down; if that fails, they are computed again at the next start."""
    try:
        memory.parent.mkdir(parents=True, exist_ok=True)
        partial = memory.with_suffix(".partial")
        partial.write_bytes(msgspec.json.encode(found))
        partial.replace(memory)
    except OSError:
        return
