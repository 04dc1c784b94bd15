"""How the library is built: what it exports and needs, the plain build, sanitizers, compilers."""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import sys

import native_build
import pytest
from native_harness import World

SOURCES = sorted(str(p) for p in native_build.NATIVE.glob("*.c"))


def symbols(library: pathlib.Path) -> list[list[str]]:
    done = subprocess.run(["nm", "-D", library], capture_output=True, text=True, check=True)
    return [line.split()[-2:] for line in done.stdout.splitlines()]


def test_exports_and_needs() -> None:
    found = symbols(native_build.built_library())
    exported = {name for kind, name in found if kind in "TDBR"}
    assert exported >= {"tt_freeze", "tt_abi", "tt_cut"} and all(
        name.startswith("tt_") for name in exported
    )
    # nothing that could be resolved, and take a lock, while other threads are stopped
    assert {name.split("@")[0] for kind, name in found if kind == "U"} <= {"getauxval"}


def test_plain_build(tmp_path: pathlib.Path) -> None:
    """An unknown machine or C library: one thread works, more are refused with the reason."""
    native_build.need(native_build.can(native_build.KINDS["plain"]))
    library = native_build.compile_c(
        native_build.shared_folder() / "plain.so",
        *native_build.FLAGS.split(),
        "-DTT_PLAIN",
        *SOURCES,
    )
    world = World(native_build.KINDS["plain"], library, native_build.built_states())
    try:
        live = world.start("import os, threading, time\nr, w = os.pipe(); os.write(w, b'in')\n")
        frozen = live.freeze()
        assert frozen.made["result"] == 0
        moved = live.ask({"freeze": {"flags": 1}})
        assert moved["result"] in (-95, -22)
        live.run("t = threading.Thread(target=time.sleep, args=(1e6,), daemon=True); t.start()")
        refused = live.freeze()
        assert refused.made["result"] == -95
        assert "more than one thread" in refused.report[0][2]
        assert live.value("t.is_alive()")
        live.kill()
        for _ in range(2):
            woken = frozen.wake()
            assert woken.value("os.read(r, 9).decode()") == "in"
            assert woken.woken["facts"]["woken_ids_kept"] == 0
            woken.kill()
    finally:
        world.close()


@pytest.mark.parametrize("sanitizer", ["address,undefined", "undefined"])
def test_parsers_under_sanitizers(sanitizer: str, tmp_path: pathlib.Path) -> None:
    """Text of /proc and netlink answers, cut off at every byte and altered at random."""
    if sanitizer.startswith("address") and not has_sanitizer(tmp_path):
        native_build.need("the address sanitizer")
    program = native_build.compile_c(
        tmp_path / "parsers", "-O1", "-g", "-std=gnu11", f"-fsanitize={sanitizer}",
        "-fno-sanitize-recover=all", f"-I{native_build.NATIVE}",
        str(native_build.HERE / "parsers.c"),
    )  # fmt: skip
    done = subprocess.run([program], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def has_no_signature(command: list[str], function: str) -> bool:
    """Its return address is not signed although all others are (native/keys.c says why)."""
    flags = [flag for flag in native_build.FLAGS.split() if not flag.startswith("-Wl")]
    source = str(native_build.NATIVE / "keys.c")
    flags.remove("-shared")
    done = subprocess.run(
        [*command, *flags, "-S", "-o", "-", source], capture_output=True, text=True, check=True
    )
    body = done.stdout.partition(f"\n{function}:\n")[2].partition(f".size\t{function}")[0]
    assert "paciasp" in done.stdout or "hint\t25" in done.stdout
    return bool(body) and "paciasp" not in body and "hint\t25" not in body


def has_sanitizer(folder: pathlib.Path) -> bool:
    source = folder / "empty.c"
    source.write_text("int main(void) { return 0; }\n")
    command = ["cc", "-fsanitize=address", "-o", str(folder / "empty"), str(source)]
    return subprocess.run(command, capture_output=True).returncode == 0


@pytest.mark.parametrize("machine", ["this", "aarch64"])
def test_machine_code(machine: str, tmp_path: pathlib.Path) -> None:
    """The assembly of arch_*.h by itself: system call, thread, sigreturn, takeover."""
    flags = ["-O2", "-std=gnu11", "-Wall", "-Wextra", "-Werror", f"-I{native_build.NATIVE}"]
    command = ["cc"]
    run = []
    if machine == "aarch64":
        command, run = ["aarch64-linux-gnu-gcc"], ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"]
        for program in (command[0], run[0]):
            if shutil.which(program) is None:
                native_build.need(program)
    program = str(tmp_path / "arch")
    source = str(native_build.HERE / "arch.c")
    subprocess.run([*command, *flags, "-o", program, source], check=True)
    done = subprocess.run([*run, program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "emulated" not in done.stdout or machine != "this"


@pytest.mark.parametrize(
    "compiler",
    [
        "clang",
        "aarch64-linux-gnu-gcc",
        "aarch64-linux-gnu-gcc -mbranch-protection=standard",
        "ziglang x86_64-linux-gnu.2.17",
        pytest.param("ziglang aarch64-linux-gnu.2.17", marks=pytest.mark.exhaustive),
        pytest.param("ziglang x86_64-linux-musl", marks=pytest.mark.exhaustive),
    ],
)
def test_other_compilers(compiler: str, tmp_path: pathlib.Path) -> None:
    """Compiles without a warning wherever it claims to."""
    command: list[str] = compiler.split()
    if command[0] == "ziglang":
        pytest.importorskip("ziglang")
        command = [sys.executable, "-m", "ziglang", "cc", "-target", command[1]]
    elif shutil.which(command[0]) is None:
        native_build.need(command[0])
    if command[1:] == ["-mbranch-protection=standard"]:
        assert has_no_signature(command, "tt_keys_set") and has_no_signature(command, "send_out")
    library = tmp_path / "lib.so"
    done = subprocess.run(
        [*command, *native_build.FLAGS.split(), "-Werror", "-o", str(library), *SOURCES],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    if "aarch64" not in compiler:
        assert {n for k, n in symbols(library) if k in "TDBR"} >= {"tt_freeze", "tt_abi"}
