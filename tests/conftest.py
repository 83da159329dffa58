"""Settings for all tests, the markers of each folder, and checkpoints that several files share."""

import gc
import os
import platform
import signal
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests import kinds, warm
from tests.thorough import examples

# A busy machine must not fail a test.
settings.register_profile("galley", deadline=None, max_examples=examples(50))
settings.load_profile("galley")
# Tests run three at a time on small machines; more compute threads would only compete.
os.environ.setdefault("GALLEY_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Where a test gives torch more threads, these sleep rather than spin on cores that other tests use.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ["HF_HUB_OFFLINE"] = "1"
# Triton reads this when it is first imported, by whichever test does.
if "GALLEY_TEST_DEVICE" not in os.environ:
    os.environ["TRITON_INTERPRET"] = "1"
    # The interpreter multiplies with numpy's OpenBLAS, whose AVX2 kernels give a row different bits at a
    # different position in a matrix. Those for Sandy Bridge do not, so that what tests compare is the order
    # of sums in Galley's kernels. OpenBLAS reads this when numpy is first imported, which is later.
    if platform.machine() == "x86_64":
        os.environ.setdefault("OPENBLAS_CORETYPE", "Sandybridge")
# An HTTP client loads all of the machine's CA certificates when it is created, and hundreds are; tests of
# TLS name the certificate to trust.
os.environ |= {"SSL_CERT_FILE": "", "SSL_CERT_DIR": os.devnull}
# Containers often set this. Each of the hundreds of processes that tests start would compile all of its
# modules again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# A script's background jobs start with Ctrl-C ignored, which their children would inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Distribute units of tests; a ``--dist`` other than pyproject.toml's is honored."""
    from tests.distribution import Scheduler  # xdist calls the hook, so it is installed

    return Scheduler(config, log) if config.getoption("dist") == "loadgroup" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test with the kind of its folder."""
    for item in items:
        item.add_marker(kinds.of(item.path))


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Collect no garbage while tests are collected, and none of what exists then.

    Modules and tests live as long as the process. Searching them for garbage takes a third of the time of
    the collection, and some of every test's.
    """
    gc.disable()
    worker = getattr(session.config, "workerinput", None)
    if worker is not None:
        from tests.distribution import import_in_turn

        paths = [Path(argument.partition("::")[0]).absolute() for argument in session.config.args]
        import_in_turn(paths, int(worker["workerid"].removeprefix("gw")), worker["workercount"])
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session", autouse=True)
def user_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Set the user's cache folder, for this process and its children."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("user-cache")
        patch.setenv("XDG_CACHE_HOME", str(folder))
        warm.set_usual(os.environ)
        yield folder


CheckpointMaker = Callable[[str], Path]


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> CheckpointMaker:
    """Return ``checkpoint(variant)``, which gives the folder of a variant; see ``tests/checkpoints.py``."""
    # Imported late: most tests do not need transformers, which takes seconds to import.
    from tests.checkpoints import make_checkpoint, make_whisper

    made: dict[str, Path] = {}

    def get(variant: str) -> Path:
        if variant not in made:
            make = make_whisper if variant.startswith("whisper") else make_checkpoint
            made[variant] = make(tmp_path_factory.mktemp(variant), variant)
        return made[variant]

    return get
