"""Makes `mlserver/requests.json`: inference requests as MLServer's codecs encode them.

A request codec encodes one array, and names the input itself; an input codec is given a name.
"""

import json
import sys
from pathlib import Path
from typing import Any, Final

import numpy as np
from mlserver.codecs import Base64Codec, NumpyCodec, NumpyRequestCodec, StringCodec
from mlserver.types import InferenceRequest, RequestInput

ROWS: Final = np.array([[0.5] * 4, [1.5] * 4], np.float32)


def of(one: RequestInput) -> InferenceRequest:
    """Return a request with one input."""
    return InferenceRequest(inputs=[one])


def main(folder: Path) -> None:
    """Write the requests."""
    requests = {
        "numpy request": NumpyRequestCodec.encode_request(ROWS),
        "numpy input": of(NumpyCodec.encode_input("input", ROWS)),
        "string input": of(StringCodec.encode_input("x", ["a", "b"], use_bytes=False)),
        "base64 input": of(Base64Codec.encode_input("x", [b"a\0"], use_bytes=False)),
    }
    bodies: dict[str, Any] = {
        name: json.loads(one.model_dump_json(exclude_none=True)) for name, one in requests.items()
    }
    folder.mkdir()
    (folder / "requests.json").write_text(json.dumps(bodies, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]) / "mlserver")
