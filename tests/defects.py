"""Introduces deliberate defects, one at a time, and checks that the tests of ``make test`` find each.

python -m tests.defects            # all of them, some minutes
python -m tests.defects salt rope  # those whose names contain one of the words
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tests.overlay import ROOT, THIS_PACKAGE, Overlay
from tests.thorough import VARIABLE


class Defect(NamedTuple):
    """A change of one place in the package, and the test that finds it.

    Attributes:
        name: what is wrong.
        path: the file, relative to ``src/galley``.
        line: text that occurs once in the file.
        replacement: the text with the defect.
        found_by: a module or a test, relative to ``tests``.
    """

    name: str
    path: str
    line: str
    replacement: str
    found_by: str


DEFECTS: Final = (
    Defect(
        "RoPE of the reference executor rotates in the opposite direction",
        "ops/reference_ops.py",
        "(a * cos - b * sin, b * cos + a * sin)",
        "(a * cos + b * sin, b * cos - a * sin)",
        "models/test_against_transformers.py::test_logits_agree_and_do_not_depend_on_chunks"
        "[llama-reference]",
    ),
    Defect(
        "an allocated block has two references",
        "engine/blocks.py",
        "self._references[block] = 1\n        return block",
        "self._references[block] = 2\n        return block",
        "engine/test_state_machine.py::TestEngineMachine",
    ),
    Defect(
        "a temperature is off by a tenth",
        "ops/draws.py",
        "1 / (math.log(2) * temperature)",
        "1 / (math.log(2) * temperature * 1.1)",
        "engine/test_sampling.py::test_samples_follow_the_reference_softmax",
    ),
    Defect(
        "the reference executor does not pause",
        "ops/reference.py",
        "if self._pause is not None:",
        "if self._pause is None:",
        "engine/test_sharing.py",
    ),
    Defect(
        "bytes after the tensors of a safetensors file are accepted",
        "formats/safetensors.py",
        "if end != size:",
        "if end > size:",
        "formats/test_hostile_checkpoints.py::test_truncated_and_trailing_bytes_are_refused",
    ),
    Defect(
        "a tile of Triton's linear op leaves out a matrix's last column",
        "ops/triton/kernels/linear.py",
        "inside = inside & (column[:, None] < depth)",
        "inside = inside & (column[:, None] < depth - 1)",
        "ops/triton/test_triton_adapters.py::test_logits_are_those_of_the_reference_executor",
    ),
    Defect(
        "the scheduler preempts the first sequence in order, not the last",
        "engine/scheduler.py",
        "victim = self.running[-1]",
        "victim = self.running[0]",
        "engine/test_draft_tokens.py::test_draft_tokens_with_preemptions",
    ),
    Defect(
        "the prefix cache ignores the tenant's salt",
        "engine/sequence.py",
        "else salt_hash(request.cache_salt)",
        'else salt_hash("")',
        "engine/test_prefix_tier.py::test_tenants_never_share_blocks",
    ),
    Defect(
        "each token's bytes are decoded on their own",
        "text/detokenizer.py",
        'return self._decoder.decode(b"".join(token_bytes(t) for t in tokens if t not in skipped))',
        'return "".join(\n'
        '            token_bytes(t).decode("utf-8", "replace") for t in tokens if t not in skipped\n'
        "        )",
        "text/test_text_detokenizer.py::test_one_token_at_a_time_never_half_a_character",
    ),
    Defect(
        "the grammar does not mask the tokens after draft tokens",
        "grammar/matcher.py",
        "if i != followed:",
        "if i:",
        "grammar/test_engine_grammar.py::test_json_follows_its_schema",
    ),
    Defect(
        "a tenant may run one request more than its limit",
        "gateway/tenants.py",
        "self.running >= tenant.concurrency",
        "self.running > tenant.concurrency",
        "gateway/test_accounts.py::test_as_many_requests_run_as_are_allowed",
    ),
    Defect(
        "paths below /admin need no admin key",
        "server/auth.py",
        'admin = f"{path}/".startswith(_ADMIN_FOLDERS)',
        "admin = path in ADMIN_PATHS",
        "server/survive/test_tenants.py::test_admin_routes_have_a_separate_key",
    ),
    Defect(
        "a long chunk's rest is sought from the chunk's start, not the part's",
        "speech/part_reader.py",
        "untranscribed_from(part.start + transcript.until)",
        "untranscribed_from(transcript.until)",
        "speech/test_session_parts.py::test_each_part_begins_where_the_one_before_it_ended",
    ),
    Defect(
        "the response cache's key leaves out the adapter",
        "cache/keys.py",
        "request.cache_salt.encode(), adapter.encode()",
        'request.cache_salt.encode(), b""',
        "cache/test_keys.py::test_what_shapes_the_answer_changes_the_key",
    ),
    Defect(
        "all groups of an int4 row have the scale of the first",
        "quant/rtn.py",
        "scales[rows] = scale\n        if zeros is not None:",
        "scales[rows] = scale[:, :1]\n        if zeros is not None:",
        "quant/test_rtn.py::test_int4_is_within_about_a_step",
    ),
)


def main(words: Sequence[str]) -> int:
    """Try the defects whose names contain one of the words; all without words.

    Returns:
        The exit code: 1 if a test fails without any defect, or misses one.
    """
    chosen = [d for d in DEFECTS if not words or any(word in d.name for word in words)]
    with tempfile.TemporaryDirectory() as folder:
        if not _passes(Path(folder) / "without", *dict.fromkeys(d.found_by for d in chosen)):
            print("the tests fail without any defect")
            return 1
        missed = 0
        for number, defect in enumerate(chosen):
            found = not _passes(Path(folder) / str(number), defect.found_by, defect=defect)
            missed += not found
            print(f"{'found ' if found else 'MISSED'}  {defect.name}", flush=True)
    return 1 if missed else 0


def _passes(folder: Path, *tests: str, defect: Defect | None = None) -> bool:
    """Return whether tests pass in a copy of the repository with the defect."""
    source = folder / "src"
    overlay = Overlay(source)
    for entry in ROOT.iterdir():
        if entry.name != "src":
            (folder / entry.name).symlink_to(entry)
    if defect is not None:
        overlay.edit(defect.path, (defect.line, defect.replacement))
    # Also in the servers and commands that tests start.
    (source / "sitecustomize.py").write_text(THIS_PACKAGE, encoding="utf-8")
    environ = {name: value for name, value in os.environ.items() if name != VARIABLE}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "0", "-q", "-x", "-p", "no:cacheprovider"]
        + [f"tests/{test}" for test in tests],
        cwd=folder,
        env=environ | {"PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode not in (0, 1):  # no test, or none that could be imported
        raise RuntimeError(done.stdout + done.stderr)
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
