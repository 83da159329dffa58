"""The voices of Kokoro: for each, a vector of style for every number of phonemes.

They are published in one file, as numpy saves arrays (``voices-v1.0.bin``, ``.npz``), or in a folder with a
file of float32 values for each voice (``voices/af_heart.bin``). No form needs pickle.
"""

import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from galley.errors import CheckpointError
from galley.settings.engine_choice import kokoro_voices

if TYPE_CHECKING:
    Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

STYLE: Final = 256
"""Numbers of a vector of style."""

_MOST_BYTES: Final = 1024 * 1024 * 1024
"""Most bytes of all voices; the 54 of Kokoro 1.0 take 28 MB."""


def find_styles(model: Path, given: str) -> Path:
    """Return the file or folder of a model's voices.

    Args:
        model: the ONNX file.
        given: its path, if it is configured.

    Raises:
        CheckpointError: there is none, or there are several.
    """
    if given:
        return Path(given).expanduser()
    found = kokoro_voices(model)
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(path.name for path in found)
        raise CheckpointError(
            f"several files next to it hold voices ({names}): choose one with "
            """engine_options '{"voices": PATH}'""",
            file=str(model),
        )
    raise CheckpointError(
        f"next to it is neither {model.name}.json, which a Piper voice has, nor the voices of Kokoro, "
        "such as voices-v1.0.bin; for voices elsewhere, set engine_options '{\"voices\": PATH}'",
        file=str(model),
    )


def read_styles(path: Path) -> "dict[str, Array]":
    """Return the styles of each voice, float32 ``[lengths, STYLE]``, in the order of the file.

    Raises:
        CheckpointError: the file does not hold voices.
    """
    try:
        voices = dict(_arrays(path))
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, NotImplementedError) as error:
        raise CheckpointError(
            f"it does not hold Kokoro's voices: {error}", file=str(path)
        ) from error
    if not voices:
        raise CheckpointError("it holds no voice of Kokoro", file=str(path))
    return {name: _checked(style, name, path) for name, style in voices.items()}


def _arrays(path: Path) -> "list[tuple[str, Array]]":
    files = sorted(path.glob("*.bin")) if path.is_dir() else [path]
    _check_size(sum(file.stat().st_size for file in files))
    if not path.is_dir() and zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            _check_size(sum(one.file_size for one in archive.infolist()))
        with np.load(path, allow_pickle=False) as arrays:
            return list(arrays.items())
    return [(file.stem, np.fromfile(file, "<f4").reshape(-1, STYLE)) for file in files]


def _check_size(size: int) -> None:
    if size > _MOST_BYTES:
        raise ValueError(f"they take {size} bytes, expected {_MOST_BYTES} at most")


def _checked(style: "Array", name: str, path: Path) -> "Array":
    fits = style.dtype.kind == "f" and style.size > 0 and style.shape[-1:] == (STYLE,)
    if not fits or style.size != style.shape[0] * STYLE:
        raise CheckpointError(
            f"voice {name!r} is {style.dtype} of shape {list(style.shape)}, expected [lengths, 1, {STYLE}]",
            file=str(path),
        )
    flat = style.reshape(-1, STYLE).astype(np.float32)
    if not np.isfinite(flat).all():
        raise CheckpointError(f"voice {name!r} has values that are not finite", file=str(path))
    return flat
