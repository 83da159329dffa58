"""A runtime's threads: their placement, their cost when idle, and their shutdown."""

import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from galley import _native
from tests.native.harness import ISAS, as_weight, run_linear

ROOT = Path(__file__).parents[2]


def tasks() -> set[int]:
    return {int(task.name) for task in Path("/proc/self/task").iterdir()}


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core has no second thread")
def test_each_thread_but_the_callers_is_pinned_to_its_core() -> None:
    cpus = sorted(os.sched_getaffinity(0))
    before = tasks()
    runtime = _native.Runtime(ISAS[0], len(cpus), cpus)
    workers = tasks() - before
    assert sorted(os.sched_getaffinity(task) for task in workers) == [{cpu} for cpu in cpus[1:]]
    del runtime
    assert not tasks() & workers


def test_without_cores_to_pin_to_threads_go_where_they_like() -> None:
    before = tasks()
    runtime = _native.Runtime(ISAS[0], 3, [])
    workers = tasks() - before
    assert len(workers) == 2
    assert all(os.sched_getaffinity(task) == os.sched_getaffinity(0) for task in workers)
    del runtime


def test_threads_sleep_when_there_is_nothing_to_do() -> None:
    runtime = _native.Runtime(ISAS[0], 4, [])
    logits = np.zeros((64, 5000), dtype=np.float32)
    before = time.process_time()
    runtime.draw(logits, range(64), range(64), bytes(40 * 64))
    assert time.process_time() > before

    def quiet() -> bool:
        before = time.process_time()
        time.sleep(0.2)
        return time.process_time() - before < 0.02

    assert any(quiet() for _ in range(50))


def test_threads_that_cannot_be_started_are_an_error_and_leave_none_behind() -> None:
    done = run_python(
        "import resource, threading\n"
        "from galley import _native\n"
        "pages = int(open('/proc/self/statm').read().split()[0])\n"
        "limit = pages * resource.getpagesize() + (100 << 20)\n"
        "resource.setrlimit(resource.RLIMIT_AS, (limit, limit))\n"
        "try:\n"
        "    _native.Runtime('portable', 1000, [])\n"
        "except _native.TooFewThreads as error:\n"
        "    print(error)\n"
        "import os\n"
        "print(len(os.listdir('/proc/self/task')))\n"
    )
    assert done.returncode == 0, done.stderr
    message, left = done.stdout.splitlines()
    assert message.startswith("only ")
    assert "can be started (" in message
    assert left == "1"


@pytest.mark.parametrize("weight_cache", [True, False])
def test_too_many_threads_are_named_to_the_user(weight_cache: bool) -> None:
    done = run_python(
        "import resource\n"
        "from galley import LLM\n"
        "from galley.errors import SettingsError\n"
        f"options = {{'kv_cache_tokens': 512, 'weight_cache': {weight_cache}}}\n"
        "LLM(threads=1, **options).close()\n"
        "pages = int(open('/proc/self/statm').read().split()[0])\n"
        "limit = pages * resource.getpagesize() + (4 << 30)\n"
        "resource.setrlimit(resource.RLIMIT_AS, (limit, limit))\n"
        "try:\n"
        "    LLM(threads=1000, **options)\n"
        "except SettingsError as error:\n"
        "    print(error)\n"
    )
    assert done.stdout.startswith("threads is 1000, but only "), done.stderr


def test_a_forked_child_can_use_and_drop_what_its_parent_made() -> None:
    # At any time after a job: its threads may be about to sleep, holding their mutex.
    done = run_python(
        "import os, time\n"
        "import numpy as np\n"
        "from galley import _native\n"
        "runtime = _native.Runtime('portable', 3, [])\n"
        "logits = np.zeros((4, 5000), dtype=np.float32)\n"
        "draw = lambda: runtime.draw(logits, range(4), range(4), bytes(160))\n"
        "for microseconds in 2 * list(range(100)):\n"
        "    draw()\n"
        "    begin = time.perf_counter()\n"
        "    while time.perf_counter() < begin + microseconds / 1e6:\n"
        "        pass\n"
        "    child = os.fork()\n"
        "    if not child:\n"
        "        draw()\n"
        "        del runtime, draw\n"
        "        os._exit(7)\n"
        "    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7\n"
    )
    assert done.returncode == 0, done.stderr


def test_the_thread_sanitizer_finds_no_race(tmp_path: Path) -> None:
    compiler, setarch = shutil.which("g++"), shutil.which("setarch")
    if compiler is None or setarch is None:
        pytest.skip("needs g++ and setarch")
    where = [compiler, "-print-file-name=libtsan.so"]
    if not Path(subprocess.check_output(where, text=True).strip()).is_absolute():
        pytest.skip("g++ has no thread sanitizer here")
    program, native = tmp_path / "race", ROOT / "native"
    flags = ("-std=c++17", "-O1", "-g", "-fsanitize=thread", "-pthread", f"-I{native}")
    sources = (ROOT / "tests/native/pool_race.cpp", native / "system/pool.cpp")
    subprocess.run([compiler, *flags, *sources, "-o", program], check=True, timeout=120)
    # The sanitizer's own memory has fixed addresses, with which the system's random ones may collide.
    done = subprocess.run(
        [setarch, "-R", program], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "all done\n", "")


def test_many_runtimes_work_at_the_same_time() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(9, 96)).astype(np.float32)
    weight = as_weight(rng.normal(size=(80, 96)).astype(np.float32))
    packed = _native.Packed("int8", 80, 96, 32, "BF16")
    packed.fill([(weight.data, "F32")], threads=1)
    expected = run_linear(x, packed, 80, isa=ISAS[0], activations="int8")
    wrong: list[int] = []

    def work(number: int) -> None:
        for threads in (1, 2, 3, 4) * 5:
            got = run_linear(x, packed, 80, isa=ISAS[0], activations="int8", threads=threads)
            if not np.array_equal(got, expected):
                wrong.append(number)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong
