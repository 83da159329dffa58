"""Resolution of a model's folder: that of a bundled model, a given folder, or a downloaded hub id."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from galley.errors import ModelNotFound, UnsupportedModel, shown
from galley.formats.aliases import hub_id_of
from galley.formats.gguf_file import ggufs_in, is_accessory, is_gguf, split_files
from galley.settings.engine_choice import conversion_of, is_file_of_engine

BUNDLED: Final = "galley-demo"
BUNDLED_DRAFT: Final = "galley-demo-draft"
BUNDLED_EMBED: Final = "galley-demo-embed"
BUNDLED_SPEECH: Final = "galley-demo-speech"
BUNDLED_MODELS: Final = (BUNDLED, BUNDLED_DRAFT, BUNDLED_EMBED, BUNDLED_SPEECH)
"""Names of the bundled models. They cannot be hub ids, which contain a slash."""

OnBytes = Callable[[int, int], None]
"""Called with (completed, total) bytes of a download; the total grows as files are found."""

HUB_ID: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)

HUB_GGUF: Final = re.compile(
    rf"({HUB_ID.pattern})/((?:[A-Za-z0-9][\w.-]*/)*[A-Za-z0-9][\w.-]*\.(?i:gguf))", re.ASCII
)
"""A GGUF file on the hub: the hub id, and the file's path in its repository."""

CONFIG_FILE: Final = "config.json"

TEMPLATES_FOLDER: Final = "additional_chat_templates"
"""Folder of named chat templates, within a checkpoint's folder."""

_WANTED: Final = ("*.safetensors", "*.json", "*.jinja")
# Subfolders contain the same weights for other programs, except for those of sentence-transformers'
# modules, such as 1_Pooling, and of templates. Mistral's consolidated file is another copy, too.
_UNWANTED: Final = (
    *(
        f"{TEMPLATES_FOLDER[:i]}[!{'0-9' if i == 0 else ''}{c}]*/*"
        for i, c in enumerate(TEMPLATES_FOLDER)
    ),
    *(f"{TEMPLATES_FOLDER[:i]}/*" for i in range(len(TEMPLATES_FOLDER))),
    f"{TEMPLATES_FOLDER}?*/*",
    "[0-9][!_]*/*",
    "consolidated*.safetensors",
)


def resolve_model(
    model: str,
    *,
    revision: str = "main",
    show_progress: bool = True,
    on_bytes: OnBytes | None = None,
) -> Path:
    """Return the folder of ``model``'s checkpoint, or its file if it is one.

    Args:
        model: a bundled model's name, empty for the bundled language model, a folder, a GGUF file (of a
            split one any of its files), a hub id such as ``org/name``, a GGUF file of one
            (``org/name/FILE.gguf``), or a short name (:data:`galley.formats.aliases.ALIASES`). A hub id is
            downloaded into the hub library's cache (``HF_HOME``): only files that the cache lacks, and
            broken downloads are resumed. Pickled weights and code are never downloaded.
        revision: branch, tag or commit of a hub id.
        show_progress: draw progress bars on stderr while downloading.
        on_bytes: called with the progress instead, from several threads; an exception ends the download.

    Raises:
        ModelNotFound: the bundled speech model is not part of this installation; the folder, hub id or
            revision does not exist or may not be read; or the model is not in the cache and the hub cannot
            be reached.
        UnsupportedModel: it is a file that no engine serves; the error says what to convert it with.
    """
    if not model or model in BUNDLED_MODELS:
        return _bundled(model)
    path = existing_path(model)
    if path is not None:
        return _local(model, path)
    if is_file_of_engine(Path(model)):
        raise ModelNotFound(f"the file {model} does not exist")
    if model.startswith((".", "/", "~")) or model.endswith("/"):
        raise ModelNotFound(f"the folder {model} does not exist")
    bars = None if show_progress and on_bytes is None else _silent_bar(on_bytes)
    model = hub_id_of(model) or model
    if named := HUB_GGUF.fullmatch(model):
        wanted = [path.as_posix() for path in split_files(Path(named[2]))]
        folder = _download(named[1], revision, bars, wanted=wanted, unwanted=())
        if not (folder / named[2]).is_file():
            raise ModelNotFound(f"{named[1]} (revision {revision}) has no file {named[2]}")
        return folder / named[2]
    if not HUB_ID.fullmatch(model):
        raise ModelNotFound(
            f"{shown(model)} is not a folder, a hub id such as org/name or a short name such as "
            "llama3.2"
        )
    folder = _download(model, revision, bars)
    if any(folder.glob("*.safetensors")):
        return folder
    files = _gguf_files(model, revision, folder)
    if len(files) == 1:
        return resolve_model(
            f"{model}/{files[0]}", revision=revision, show_progress=show_progress, on_bytes=on_bytes
        )
    several = (
        f". Name one of its GGUF files ({model}/{files[0]}; {', '.join(files[1:9])})"
        if files
        else ""
    )
    raise ModelNotFound(
        f"{model} (revision {revision}) has no *.safetensors; from the hub, Galley loads safetensors, "
        f"and GGUF files by name ({model}/FILE.gguf), but never pickles{several}"
    )


def _local(model: str, path: Path) -> Path:
    """Return the folder or file to load of one that exists; raise ModelNotFound or UnsupportedModel."""
    if (other := conversion_of(path)) is not None:
        raise UnsupportedModel(f"{model} is {other}")
    if path.is_dir():
        return _only_gguf(path) or path
    if is_gguf(path) or is_file_of_engine(path):
        return path
    raise ModelNotFound(
        f"{model} is a file; give its folder, or a GGUF file or a tensor model (.onnx, .ubj, ...)"
    )


def _gguf_files(repo: str, revision: str, folder: Path) -> list[str]:
    """Return the GGUF checkpoints of a hub id, of split ones their first files.

    If the hub gives no answer, they are those of ``folder`` in the cache.
    """
    from huggingface_hub import HfApi

    try:
        names = HfApi().list_repo_files(repo, revision=revision)
    except Exception:  # the transport library differs by version
        names = [path.relative_to(folder).as_posix() for path in folder.rglob("*")]
    found = (Path(name) for name in names if name.lower().endswith(".gguf"))
    found = (path for path in found if not is_accessory(path.name))
    firsts = {split_files(path)[0].as_posix() for path in found}
    return sorted(name for name in firsts if HUB_GGUF.fullmatch(f"{repo}/{name}"))


def hub_name(model: str) -> str | None:
    """Return the hub id, or GGUF file of one, that ``model`` or its short name stands for; else None."""
    found = hub_id_of(model) or model
    return found if HUB_ID.fullmatch(found) or HUB_GGUF.fullmatch(found) else None


def _bundled(name: str) -> Path:
    from galley.demo import DRAFT_DIR, EMBED_DIR, MODEL_DIR
    from galley.demo.speech import SPEECH_MODEL_DIR

    others = {
        BUNDLED_DRAFT: DRAFT_DIR,
        BUNDLED_EMBED: EMBED_DIR,
        BUNDLED_SPEECH: SPEECH_MODEL_DIR,
    }
    folder = others.get(name, MODEL_DIR)
    if not (folder / "model.safetensors").exists():
        raise ModelNotFound(
            f"{name} is part of Galley's source tree, but not of its wheel; "
            "run from a checkout (make run), or choose another model"
        )
    return folder


def resolve_config(model: str, *, revision: str = "main") -> Path:
    """Return the ``config.json`` of a model whose weights need not be here.

    For a hub id only this file is downloaded. For a GGUF checkpoint it is the GGUF file.

    Args:
        model: as for :func:`resolve_model`, or the file itself.
        revision: branch, tag or commit of a hub id.

    Raises:
        ModelNotFound: as for :func:`resolve_model`.
    """
    path = existing_path(model) if model else None
    if path is not None and path.is_file() and is_file_of_engine(path):
        raise ModelNotFound(
            f"{model} is a tensor model; serve it with galley serve, or give a checkpoint"
        )
    if path is not None and path.is_file():
        return path
    if path is None:
        model = hub_id_of(model) or model
    if path is None and HUB_ID.fullmatch(model):
        folder = _download(model, revision, _silent_bar(), wanted=(CONFIG_FILE,))
        return folder / CONFIG_FILE
    found = resolve_model(model, revision=revision)
    return found if is_gguf(found) else found / CONFIG_FILE


def _only_gguf(folder: Path) -> Path | None:
    """Return the GGUF checkpoint of a folder that holds no other; None if there is none.

    Raises:
        ModelNotFound: there are several.
    """
    if (folder / CONFIG_FILE).exists():
        return None
    firsts = ggufs_in(folder)
    if len(firsts) > 1:
        names = ", ".join(path.name for path in firsts[:8])
        raise ModelNotFound(f"{folder} contains several GGUF files; name one of them ({names})")
    return firsts[0] if firsts else None


def existing_path(model: str) -> Path | None:
    """Return the file or folder that a model's name is the path of; None if there is none."""
    try:
        path = Path(model).expanduser()
        return path if path.exists() else None
    except (OSError, ValueError, RuntimeError):  # too long, NUL, no access, no such user's home
        return None


def _download(
    repo: str,
    revision: str,
    bars: type | None,
    wanted: Sequence[str] = _WANTED,
    unwanted: Sequence[str] = _UNWANTED,
) -> Path:
    import huggingface_hub  # takes half a second, and most starts need no hub
    from huggingface_hub import errors

    silence = None
    try:
        silence = _probe(repo, revision)
        folder = huggingface_hub.snapshot_download(
            repo,
            revision=revision,
            allow_patterns=list(wanted),
            ignore_patterns=list(unwanted),
            local_files_only=silence is not None,
            tqdm_class=bars,
        )
    except errors.HFValidationError as error:
        raise ModelNotFound(f"{repo!r} is not a hub id: {error}") from error
    except errors.GatedRepoError as error:
        raise ModelNotFound(
            f"{repo} is gated; accept its terms on its page on the hub, then set HF_TOKEN to a token of "
            "that account"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise ModelNotFound(f"{repo} has no revision {revision!r}") from error
    except errors.RepositoryNotFoundError as error:
        raise ModelNotFound(
            f"the hub has no model {repo}, or it is private; check the name, or set HF_TOKEN. There is "
            "no folder of that name either"
        ) from error
    except errors.LocalEntryNotFoundError as error:
        raise ModelNotFound(
            f"{repo} (revision {revision}) is not complete in the cache and the hub cannot be reached "
            f"({_reason(silence or error)}); connect to the network, set HF_ENDPOINT to a mirror, or "
            "give a folder"
        ) from error
    except Exception as error:  # disk full, proxies ...; the transport library differs by version
        raise ModelNotFound(
            f"the download of {repo} was interrupted ({_reason(error)}); start it again to resume with the "
            "remaining files"
        ) from error
    return Path(folder)


def _probe(repo: str, revision: str) -> Exception | None:
    """Return why the hub is unreachable, or ``None``; ``snapshot_download`` alone would wait forever."""
    from huggingface_hub import HfApi, constants, errors

    try:
        HfApi().repo_info(repo, revision=revision, timeout=constants.HF_HUB_ETAG_TIMEOUT)
    except (errors.HfHubHTTPError, errors.HFValidationError):
        return None  # the hub answered, or the request is invalid; snapshot_download reports which
    except Exception as error:  # the transport library differs by version
        return error
    return None


def _reason(error: BaseException) -> str:
    """Return the first line of the innermost error: outer ones are advice for callers of the library."""
    from huggingface_hub.errors import OfflineModeIsEnabled

    while error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, OfflineModeIsEnabled):
        return "HF_HUB_OFFLINE is set"
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _silent_bar(on_bytes: OnBytes | None = None) -> type:
    """Return a class of progress bars that draw nothing; those that count bytes call ``on_bytes``."""
    from huggingface_hub.utils import tqdm  # type: ignore[attr-defined]

    class Silent(tqdm):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            # A second bar counts the bytes transferred, which can be compressed.
            counts = kwargs.get("unit") == "B" and not str(kwargs.get("name")).endswith(".transfer")
            self._on_bytes = on_bytes if counts else None
            self._done = 0
            super().__init__(*args, **{**kwargs, "disable": True})  # type: ignore[no-untyped-call]

        def update(self, n: float | None = 1) -> bool | None:
            if self._on_bytes is not None:
                self._done += int(n or 0)
                self._on_bytes(self._done, int(self.total or 0))
            return None

    return Silent
