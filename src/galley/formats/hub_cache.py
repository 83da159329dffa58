"""Listing and removal of models in the hub library's cache (``HF_HOME``)."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from galley.errors import ModelNotFound
from galley.formats.aliases import hub_id_of
from galley.formats.gguf_file import is_accessory, split_files
from galley.formats.source import HUB_GGUF

if TYPE_CHECKING:
    from huggingface_hub import CachedRepoInfo, HFCacheInfo

_SAFETENSORS: Final = ".safetensors"
_GGUF: Final = ".gguf"


@dataclass(frozen=True)
class StoredModel:
    """A model that can be loaded without a download.

    Attributes:
        name: its hub id, or that of a GGUF file (``org/name/FILE.gguf``).
        size: size of its files, in bytes.
        modified: Unix time of the newest file.
    """

    name: str
    size: int
    modified: float


def stored_models() -> list[StoredModel]:
    """Return the models of the cache, the newest first."""
    cache = _cache()
    models = [model for repo in (cache.repos if cache else ()) for model in _models(repo)]
    return sorted(models, key=lambda model: (-model.modified, model.name))


def remove(name: str) -> int:
    """Delete a model from the cache, with all its revisions.

    A server that runs it continues with the files it has mapped, until its engine has to start again.

    Args:
        name: hub id, GGUF file of one (of a split one any of its files), or short name.

    Returns:
        The number of bytes freed.

    Raises:
        ModelNotFound: it is not in the cache.
    """
    model = hub_id_of(name) or name
    gguf = HUB_GGUF.fullmatch(model)
    cache = _cache()
    repos = cache.repos if cache else frozenset()
    repo = next((r for r in repos if r.repo_id == (gguf[1] if gguf else model)), None)
    if cache is None or repo is None or repo.repo_type != "model":
        raise ModelNotFound(f"{name} is not in the cache; galley list shows its models")
    if gguf is None or set(_files(repo)) == set(split_files(Path(gguf[2]))):
        plan = cache.delete_revisions(*(revision.commit_hash for revision in repo.revisions))
        plan.execute()
        return plan.expected_freed_size
    return _remove_files(repo, name, split_files(Path(gguf[2])))


def _remove_files(repo: "CachedRepoInfo", name: str, paths: list[Path]) -> int:
    """Delete single files of a repository, whose other files stay."""
    freed = 0
    for revision in repo.revisions:
        for file in revision.files:
            if file.file_path.relative_to(revision.snapshot_path) in paths:
                file.file_path.unlink(missing_ok=True)
                if file.blob_path.exists():
                    freed += file.size_on_disk
                    file.blob_path.unlink()
    if not freed:
        raise ModelNotFound(f"{name} is not in the cache; galley list shows its models")
    return freed


def _cache() -> "HFCacheInfo | None":
    """Scan the cache; return None if nothing was ever downloaded."""
    from huggingface_hub import scan_cache_dir  # takes half a second
    from huggingface_hub.errors import CacheNotFound

    try:
        return scan_cache_dir()
    except CacheNotFound:
        return None


def _models(repo: "CachedRepoInfo") -> list[StoredModel]:
    if repo.repo_type != "model":
        return []
    files = _files(repo)
    models = []
    if any(path.suffix == _SAFETENSORS and len(path.parts) == 1 for path in files):
        size = sum(size for path, (size, _) in files.items() if path.suffix.lower() != _GGUF)
        models.append(StoredModel(repo.repo_id, size, repo.last_modified))
    for first in {
        split_files(path)[0]
        for path in files
        if path.suffix.lower() == _GGUF and not is_accessory(path.name)
    }:
        parts = [files[path] for path in split_files(first) if path in files]
        name = f"{repo.repo_id}/{first.as_posix()}"
        size, came = sum(size for size, _ in parts), max(came for _, came in parts)
        models.append(StoredModel(name, size, came))
    return models


def _files(repo: "CachedRepoInfo") -> dict[Path, tuple[int, float]]:
    """Return path in the repository -> (size, time) from the newest revision that has the file."""
    return {
        file.file_path.relative_to(revision.snapshot_path): (
            file.size_on_disk,
            file.blob_last_modified,
        )
        for revision in sorted(repo.revisions, key=lambda revision: revision.last_modified)
        for file in revision.files
    }
