"""The sources from which a recording is read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, TypeAlias

from galley.errors import RequestError
from galley.types.audio import SampleType

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Samples: TypeAlias = "NDArray[np.float32]"
"""Mono samples in [-1, 1]."""

Source: TypeAlias = str | Path | bytes | BinaryIO
"""A path (never a network address), the file's bytes, or a seekable open file."""

TWO: Final = 2
"""Channels that can be kept apart: those of a call's two sides."""


@dataclass(frozen=True)
class RawPcm:
    """Format of a file without a header; channels are interleaved."""

    sample_rate: int
    channels: int = 1
    type: SampleType = "s16le"


def raw_pcm(
    type_: SampleType | None, sample_rate: int | None, channels: int | None
) -> RawPcm | None:
    """Return the format that request fields or flags give for a headerless file; None if none is given.

    Raises:
        RequestError: a field is missing or conflicts with the others; ``param`` names it.
    """
    if type_ is None:
        for name, value in (("sample_rate", sample_rate), ("channels", channels)):
            if value is not None:
                raise RequestError(
                    f"{name} applies to files without a header only; set raw_format to their encoding",
                    param=name,
                )
        return None
    if sample_rate is None:
        raise RequestError(
            f"raw_format {type_} needs sample_rate, which such files do not state",
            param="sample_rate",
        )
    return RawPcm(sample_rate, channels or 1, type_)
