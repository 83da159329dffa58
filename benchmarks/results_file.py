"""Write figures to a file of benchmarks/results, from which scripts/benchmarks_page.py makes the pages."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from scripts.benchmarks_page import Figure, Machine


def machine_file(name: str) -> Path:
    """Parse the argument ``--results``, so that a wrong name fails before hours of measuring.

    Raises:
        argparse.ArgumentTypeError: it is not the file of a machine.
    """
    file = Path(name)
    try:
        msgspec.json.decode(file.read_bytes(), type=Machine)
    except OSError as error:
        raise argparse.ArgumentTypeError(
            f"{name}: {error.strerror}. --results takes a file of benchmarks/results; for a new machine "
            'create one with its "name" and "description", and "figures": []'
        ) from None
    except msgspec.MsgspecError as error:
        raise argparse.ArgumentTypeError(f"{name} does not describe a machine: {error}") from None
    return file


def put(file: Path, figures: Sequence[Figure]) -> None:
    """Replace the figures of the same ``what`` in a machine's file, and append the others.

    Raises:
        msgspec.ValidationError: the file does not describe a machine.
    """
    content = json.loads(file.read_text(encoding="utf-8"))
    kept: list[dict[str, Any]] = content["figures"]
    for figure in figures:
        encoded = _encoded(figure)
        places = [i for i, old in enumerate(kept) if old["what"] == figure.what]
        if places:
            kept[places[0]] = encoded
        else:
            kept.append(encoded)
    lines = ",\n".join(f"    {json.dumps(figure, ensure_ascii=False)}" for figure in kept)
    head = {name: value for name, value in content.items() if name != "figures"}
    text = json.dumps(head, indent=2, ensure_ascii=False)
    text = f'{text.removesuffix("}").rstrip()},\n  "figures": [\n{lines}\n  ]\n}}\n'
    msgspec.json.decode(text, type=Machine)
    file.write_text(text, encoding="utf-8")


def _encoded(figure: Figure) -> dict[str, Any]:
    """Return the JSON form: fields with default values are left out."""
    fields = msgspec.structs.fields(Figure)
    encoded = {f.name: getattr(figure, f.name) for f in fields}
    return {f.name: encoded[f.name] for f in fields if f.required or encoded[f.name] != f.default}
