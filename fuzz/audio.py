"""Fuzz target: uploaded recordings, in every container and encoding that Galley reads.

FFmpeg reads them in this process, so its crashes are findings as well. Its code is not instrumented: the
Python code around it guides the fuzzer, and the corpus has a small file of every kind.
"""

import logging
from typing import Final

import av
import numpy as np

from galley.errors import GalleyError
from galley.speech.audio import SAMPLE_RATE, Recording

MOST_SECONDS: Final = 60.0
MOST_MESSAGE: Final = 2000
"""Characters of the longest sensible error."""

av.logging.set_level(av.logging.PANIC)
logging.getLogger("libav").setLevel(logging.CRITICAL)


def fuzz(data: bytes) -> None:
    """Decode ``data`` as the server does. Samples must be numbers in [-1, 1], and no more than allowed."""
    try:
        with Recording(data, name="call.wav", max_seconds=MOST_SECONDS) as recording:
            for block in recording:
                assert block.dtype == np.float32, block.dtype
                assert np.abs(block).max() <= 1.0, "samples beyond full scale, or not numbers"
                assert recording.seconds <= MOST_SECONDS
                assert len(block) <= 8 * SAMPLE_RATE, f"a block of {len(block)} samples"
    except GalleyError as error:
        if len(str(error)) > MOST_MESSAGE:
            raise AssertionError(f"an error of {len(str(error))} characters") from error


TOKENS: Final = (
    *(
        "RIFF",
        "WAVEfmt ",
        "data",
        "OggS",
        "OpusHead",
        "OpusTags",
        "fLaC",
        "ftypM4A ",
        "moov",
        "trak",
    ),
    *(
        "mdat",
        "stsd",
        "stts",
        "stsz",
        "stsc",
        "stco",
        "esds",
        "ID3",
        "Xing",
        "LAME",
        "webm",
        "A_OPUS",
    ),
)
