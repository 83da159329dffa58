"""Fuzz one target with atheris (coverage-guided, libFuzzer underneath).

    python -m fuzz NAME [--seconds N] [--found FOLDER] [-- LIBFUZZER_OPTION ...]

Starts with fuzz/corpus/NAME; inputs that reach new code go to FOLDER, and so does an input that crashes,
hangs for 5 s or takes 2 GB, which ends the run (nonzero exit code). Needs the extra ``fuzz``.
"""

import argparse
import random
import sys
import sysconfig
from pathlib import Path

import atheris

from fuzz import targets


def main() -> None:
    """Run the target until its time is over or something is found."""
    parser = argparse.ArgumentParser(description="Fuzz one parser of untrusted bytes.")
    parser.add_argument("name", choices=targets.NAMES)
    parser.add_argument("--seconds", type=int, default=1800)
    parser.add_argument("--found", type=Path, default=Path("build/fuzz"))
    parser.add_argument("options", nargs="*", help="libFuzzer options, after --")
    arguments = parser.parse_args()
    _import_by_path()
    with atheris.instrument_imports(
        include=["galley", "starlette.formparsers", "python_multipart"]
    ):
        import galley

        galley.__path__.append(f"{sysconfig.get_path('purelib')}/galley")  # compiled modules
        target = targets.load(arguments.name)
    found = arguments.found / arguments.name
    found.mkdir(parents=True, exist_ok=True)
    words = found.with_suffix(".dict")
    words.write_text("".join(f"{_quoted(token)}\n" for token in target.tokens), encoding="ascii")
    flags = [
        f"-max_total_time={arguments.seconds}",
        "-max_len=16384",
        "-timeout=5",
        "-rss_limit_mb=2048",
        f"-artifact_prefix={found}/",
        f"-dict={words}",
        *arguments.options,
    ]
    folders = [str(found), str(targets.CORPUS / arguments.name)]

    def mutate(data: bytes, max_size: int, seed: int) -> bytes:
        source = random.Random(seed)
        changed = target.mutate(data, source) if source.random() < 0.5 else None
        if changed is None or len(changed) > max_size:
            return bytes(atheris.Mutate(data, max_size))
        return changed

    atheris.Setup([sys.argv[0], *flags, *folders], target.fuzz, custom_mutator=mutate)
    atheris.Fuzz()


def _import_by_path() -> None:
    """Have Python's own loader import Galley: atheris does not instrument editable installs."""
    sys.meta_path[:] = [f for f in sys.meta_path if "editable" not in type(f).__module__]
    sys.path.insert(0, str(targets.FOLDER.parent / "src"))


def _quoted(token: str) -> str:
    """Return a token in the format of libFuzzer's dictionaries."""
    plain = {ord('"'), ord("\\")}
    text = "".join(
        chr(byte) if 32 <= byte < 127 and byte not in plain else f"\\x{byte:02x}"
        for byte in token.encode()
    )
    return f'"{text}"'


if __name__ == "__main__":
    main()
