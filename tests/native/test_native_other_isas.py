"""Kernels of instruction sets that this CPU lacks, against the portable ones.

NEON runs under qemu, AVX-VNNI in the encoding of AVX-512, linear layers of AMX on tiles in memory."""

import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.native.harness import ISAS
from tests.thorough import THOROUGH

pytestmark = pytest.mark.skipif(
    not THOROUGH, reason="takes a minute or two to compile: make thorough runs it"
)

ROOT = Path(__file__).parents[2]
NATIVE = ROOT / "native"
HERE = Path(__file__).parent
ARM_COMPILER, ARM_EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
EVEX = "-mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni"


def sources(group: str) -> list[Path]:
    """Return the files that ``native/CMakeLists.txt`` lists under a name."""
    listed = re.search(
        rf"^set\({group} (.*?)\)", (NATIVE / "CMakeLists.txt").read_text(), re.M | re.S
    )
    assert listed
    return [NATIVE / "kernels" / name for name in listed[1].split()]


@dataclass(frozen=True)
class Build:
    """A driver that compares the kernels of ``isa`` with the portable ones."""

    compiler: str
    folder: Path
    isa: str

    def compile(self, source: Path, flags: list[str], prefix: str = "") -> Path:
        target = self.folder / f"{prefix}{source.stem}.o"
        common = ["-std=gnu++20", "-O1", "-Wall", "-Wextra", "-Werror", "-Wno-psabi"]
        common += ["-ffp-contract=off", "-fno-math-errno", f"-I{NATIVE}"]
        command = [self.compiler, *common, *flags, "-c", str(source), "-o", str(target)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return target

    def kernels(
        self, isa: str, files: list[Path], flags: str, base: str = "", simd: str = ""
    ) -> list[Path]:
        defined = {
            "ISA": isa,
            "NAME": f'"{isa}"',
            "SIMD": f'"{simd or f"simd/{isa}.hpp"}"',
            "KERNELS": f"kernels_{isa}",
            "BASE_KERNELS": f"kernels_{base}",
        }
        given = [f"-DGALLEY_{name}={value}" for name, value in defined.items()] + flags.split()
        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(lambda file: self.compile(file, given, f"{isa}-"), files))

    def link(self, kernels: list[Path], *defined: str) -> Path:
        files = [NATIVE / "kernels/isa.cpp"]
        files += [NATIVE / f"packing/{name}.cpp" for name in ("packed", "rounding")]
        files += [NATIVE / f"runtime/{name}.cpp" for name in ("adapters", "runtime")]
        files += [NATIVE / f"system/{name}.cpp" for name in ("memory", "pool")]
        files.append(HERE / "kernels_agree.cpp")
        flags = [f"-D{name}" for name in (f"GALLEY_TESTED=kernels_{self.isa}", *defined)]
        objects = [self.compile(file, flags) for file in files]
        program = self.folder / "agree"
        linked = [self.compiler, "-static", "-pthread", *kernels, *objects, "-o", program]
        subprocess.run(list(map(str, linked)), check=True)
        return program


@pytest.mark.timeout(600)
def test_neon_agrees_with_portable_kernels(tmp_path: Path) -> None:
    for tool in (ARM_COMPILER, ARM_EMULATOR):
        if not shutil.which(tool):
            pytest.skip(f"{tool} is missing (Debian: g++-aarch64-linux-gnu, qemu-user)")
    build = Build(ARM_COMPILER, tmp_path, "neon")
    kernels = build.kernels("portable", sources("all"), "")
    kernels += build.kernels("neon", sources("all"), "-march=armv8.2-a+dotprod")
    program = build.link(kernels, "GALLEY_HAS_neon")
    done = subprocess.run([ARM_EMULATOR, program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert re.search(r"^neon agrees: .* runs neon portable$", done.stdout), done.stdout


def test_avx_vnni_agrees_with_portable_kernels(tmp_path: Path) -> None:
    """AVX-VNNI's additions to AVX2: the same source, compiled for the same registers of AVX-512 VNNI."""
    if "avx512vnni" not in ISAS:
        pytest.skip("this CPU has no AVX-512 VNNI, whose encoding of vpdpbusd the test runs")
    build = Build("g++", tmp_path, "avxvnni")
    kernels = build.kernels("portable", sources("all"), "")
    kernels += build.kernels("avxvnni", sources("of_int8"), EVEX, base="portable")
    done = subprocess.run([build.link(kernels)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert done.stdout.startswith("avxvnni agrees"), done.stdout


def test_linear_layers_on_amx_agree_with_portable_kernels(tmp_path: Path) -> None:
    text = (NATIVE / "kernels" / "simd" / "portable.hpp").read_text()
    for old, new in (("kWidth = 4;", "kWidth = 16;"), ('#include "bf16_widened.hpp"\n', "")):
        assert text.count(old) == 1
        text = text.replace(old, new)
    (tmp_path / "portable_512.hpp").write_text(text)
    build = Build("g++", tmp_path, "amx")
    kernels = build.kernels("portable", sources("all"), "")
    files = [NATIVE / "kernels" / "linear_amx.cpp", HERE / "amx_emulated.cpp"]
    places = [HERE, NATIVE / "kernels", NATIVE / "kernels" / "simd", tmp_path]
    flags = " ".join(f"-I{place}" for place in places)
    kernels += build.kernels("amx", files, flags, base="portable", simd="amx_emulated.hpp")
    done = subprocess.run([build.link(kernels)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert done.stdout.startswith("amx agrees"), done.stdout
