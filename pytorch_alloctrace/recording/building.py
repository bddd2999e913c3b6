"""Compiles the extension modules: from which sources, with which options, several files at once.

Serves two callers that must agree. setup.py loads this file before anything is installed, so it imports the standard
library alone. And enable() runs it as a program (see loading.py): compiling takes a minute of processor time, threads
and memory, none of which may come from the process that is about to be observed.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.machinery
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

MINIMUM_TORCH = (2, 9)
MINIMUM_GCC = 11
"""The first with all of C++20 that is used here."""

# The folders of csrc that each module is built from. A new file needs no entry here.
SHARED = ("core/base", "core/format")
READER = (*SHARED, "core/reading", "core/replay", "core/folding", "core/what_if", "core/writing", "python/reading")
# These make Linux calls and include torch's headers: the reading half compiles none of them.
FOLDING = ("core/reading", "core/replay", "core/folding")
"""What a recording needs that keeps its own trace small: it reads it."""
RECORDER = (*SHARED, "core/recording", *FOLDING, "core/bounding", "system", "python/recording", "torch")
WITH_CUDA, WITHOUT_CUDA = "torch/cuda", "torch/no_cuda"
CUDA_STAND_INS = "torch/cuda_stand_ins"

# The hook, whole: its parts lie in three folders, and its code competes with the program's for the nearest cache. In
# tools/bench/cuda this takes a sixth off what an allocation costs.
WHOLE_PROGRAM = ["-flto=auto"]
# But for what has inline variables of torch's headers: there is to be one of them in the process, and as a part of the
# whole the compiler makes it the module's own. (torch keeps the settings of its CUDA allocator in one.)
APART = {"allocator_settings.cpp": ["-fno-lto"]}
# No vectors made of single fields: those would be written to the stack one by one and read from there in pairs, and the
# processor waits until what was written has left it. On one machine it added half as much again, without stacks.
HOOK_CODE = ["-fno-semantic-interposition", "-fno-plt", "-fno-tree-slp-vectorize"]

MOST_JOBS = 8
"""A compiler takes up to 1 GB. More of them than this on a large node gain little, and could take the memory from the
program that waits for them."""


class BuildError(Exception):
    """Why nothing could be built: one sentence with the next command."""


class Target(NamedTuple):
    """What a compiled recorder depends on, apart from its sources.

    The compiler is not part of it: its releases make code that fits together, and a machine that has none must find
    what another made for it (a login node, an earlier layer of an image).
    """

    torch: str
    torch_commit: str
    cuda: str | None
    cxx11_abi: bool
    python: str
    abi: str
    """With the processor's architecture: "cpython-311-x86_64-linux-gnu"."""
    libc: str
    """A home folder may be shared by machines with different C libraries."""


class Module(NamedTuple):
    """An extension module, and how it is compiled."""

    sources: list[Path]
    options: list[str]
    link_options: list[str]
    made_for: str
    """What else the objects depend on. When it differs from that of existing objects, they are compiled again."""


def python_abi() -> str:
    """The tag of modules that this interpreter loads, without loading the interpreter's build settings."""
    return importlib.machinery.EXTENSION_SUFFIXES[0].removeprefix(".").removesuffix(".so")


def target_of(torch: Any) -> Target:
    """The target for this interpreter and an imported torch."""
    try:
        libc = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (AttributeError, ValueError, OSError):  # another C library
        libc = ""
    return Target(
        torch=str(torch.__version__),
        torch_commit=str(torch.version.git_version),
        cuda=torch.version.cuda,
        cxx11_abi=bool(torch.compiled_with_cxx11_abi()),
        python=sys.version.split()[0],
        abi=python_abi(),
        libc=libc,
    )


def is_too_old(torch_version: str) -> bool:
    return tuple(int(part) for part in torch_version.split("+")[0].split(".")[:2]) < MINIMUM_TORCH


def sources(csrc: Path, *folders: str) -> list[Path]:
    """The files of these folders of csrc, without those of the folders in them."""
    return [path for folder in folders for path in sorted((csrc / folder).glob("*.cpp"))]


def recorder_files(csrc: Path) -> list[Path]:
    """All that the recorder is built from, for any torch."""
    found = {path for folder in RECORDER for path in (csrc / folder).rglob("*") if path.suffix in (".cpp", ".h", "")}
    return sorted(path for path in found if path.is_file() and not path.name.startswith("."))


def recorder_key(target: Target, csrc: Path) -> str:
    """The name under which a recorder is kept. Anything else that would make another binary changes it."""
    digest = hashlib.sha256(repr(target).encode())
    for path in [*recorder_files(csrc), Path(__file__)]:
        content = path.read_bytes()
        digest.update(f"{path.name} {len(content)} ".encode() + content)
    return f"torch-{target.torch}-{target.abi}-{digest.hexdigest()[:16]}"


def reader(csrc: Path, pybind11_include: str) -> Module:
    return Module(
        sources=sources(csrc, *READER),
        options=_options([pybind11_include]),
        link_options=["-bundle", "-undefined", "dynamic_lookup"] if sys.platform == "darwin" else ["-shared"],
        made_for=python_abi(),
    )


def recorder(csrc: Path, target: Target, torch_folder: Path, packages: list[str]) -> Module:
    """packages: folders where installed packages are, among them those of CUDA."""
    include = torch_folder / "include"
    # Only torch's copy of pybind11: its headers include pybind11 too, and two versions must not meet in one file.
    includes = [str(include), str(include / "torch" / "csrc" / "api" / "include")]
    if not (include / "torch" / "csrc").is_dir():
        raise BuildError(
            f"the torch in {torch_folder} has no headers to compile the recorder with: install one from PyPI, "
            f"`pip install --force-reinstall torch=={target.torch.split('+')[0]}`"
        )
    libraries = ["c10", "torch", "torch_cpu", "torch_python"]
    if target.cuda is not None:
        includes += _cuda_includes(target.cuda, packages, csrc)
        libraries += ["c10_cuda", "torch_cuda"]
    folders = (*RECORDER, WITHOUT_CUDA if target.cuda is None else WITH_CUDA)
    whole_program = WHOLE_PROGRAM if _links_whole_programs() else []
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(target.cxx11_abi)}"
    return Module(
        # The slowest first: begun last, it would run alone in the end.
        sources=sorted(sources(csrc, *folders), key=lambda path: path.name != "autograd_context.cpp"),
        options=[*_options(includes), abi, *HOOK_CODE, *whole_program],
        link_options=[
            *("-shared", "-O2", *whole_program, f"-L{torch_folder / 'lib'}"),
            *(f"-l{name}" for name in libraries),
        ],
        made_for=repr(target),
    )


def _options(system_includes: list[str]) -> list[str]:
    # As Python's own extension modules are compiled: NDEBUG and -fwrapv concern its headers, and torch's.
    options = ["-std=c++20", "-O2", "-g0", "-fPIC", "-DNDEBUG", "-fwrapv", "-fvisibility=hidden"]
    if os.environ.get("ALLOCTRACE_WERROR") == "1":
        options += ["-Wall", "-Wextra", "-Werror"]
    # -isystem, not -I: warnings in the headers of others are not ours to mend.
    for folder in [*system_includes, sysconfig.get_path("include")]:
        options += ["-isystem", folder]
    return options


def _cuda_includes(cuda: str, packages: list[str], csrc: Path) -> list[str]:
    """Folders of CUDA's headers: those of the pip packages that torch brings, else those of a toolkit.

    The packages that torch brings leave out crt/ and nv/target. These headers say nothing to a host compiler, and
    csrc/torch/cuda_stand_ins stands in for them. It comes last: a real one is used where there is one.
    """
    folders = [Path(folder) for folder in packages if folder]
    pip_folders = [folder / "nvidia" / f"cu{cuda.split('.')[0]}" / "include" for folder in folders]
    # Up to CUDA 12 each library had a folder of its own.
    pip_folders += [found for folder in folders for found in sorted(folder.glob("nvidia/*/include"))]
    toolkits = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    candidates = [*pip_folders, *(Path(toolkit) / "include" for toolkit in toolkits if toolkit)]
    found = [str(folder) for folder in candidates if folder.is_dir()]
    if not any((Path(folder) / "cuda_runtime_api.h").is_file() for folder in found):
        raise BuildError(
            f"the headers of CUDA {cuda} are missing: run "
            f"`pip install nvidia-cuda-runtime{'-cu12' if cuda.startswith('12') else ''}=={cuda}.*`, "
            "or set CUDA_HOME to a CUDA toolkit"
        )
    return [*dict.fromkeys(found), str(csrc / CUDA_STAND_INS)]


def check_compiler() -> None:
    """Raises BuildError where no module could be compiled: without a compiler, or Python's headers."""
    version = _compiler_version()
    if version.isdecimal() and int(version) < MINIMUM_GCC and not _is_clang():
        raise BuildError(
            f"{shlex.join(compiler())} is GCC {version}, and GCC {MINIMUM_GCC} or newer is needed: install it and "
            f"name it, as in `CXX=g++-{MINIMUM_GCC}`"
        )
    header = Path(sysconfig.get_path("include"), "Python.h")
    if not header.is_file():
        here = f"python{sys.version_info[0]}.{sys.version_info[1]}"
        raise BuildError(f"Python's headers are missing ({header}): {_install(f'{here}-dev', 'python3-devel')}")


def compiler() -> list[str]:
    """The words of the command. Raises BuildError if there is none."""
    if named := os.environ.get("CXX"):
        words = shlex.split(named)
        if words and shutil.which(words[0]):
            return words
        raise BuildError(f"there is no compiler CXX={named}: run `unset CXX`, or name one that is installed")
    for name in ("c++", "g++", "clang++"):
        if shutil.which(name):
            return [name]
    here = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    has_headers = Path(sysconfig.get_path("include"), "Python.h").is_file()
    packages = ("g++", "gcc-c++") if has_headers else (f"g++ {here}-dev", "gcc-c++ python3-devel")
    raise BuildError(f"there is no C++ compiler: {_install(*packages)}")


def _install(debian: str, fedora: str) -> str:
    return f"run `dnf install {fedora}`" if shutil.which("dnf") else f"run `apt-get install {debian}`"


def _compiler_version() -> str:
    done = subprocess.run([*compiler(), "-dumpversion"], capture_output=True, text=True, check=False)
    return done.stdout.strip().partition(".")[0]


def _is_clang() -> bool:
    done = subprocess.run([*compiler(), "--version"], capture_output=True, text=True, check=False)
    return "clang" in done.stdout


def _links_whole_programs() -> bool:
    """Return whether compiler and linker work together for WHOLE_PROGRAM: a GCC beside the linker of another one may
    not, and clang's needs a linker that is often missing."""
    if _is_clang():
        return False
    with tempfile.TemporaryDirectory(prefix="alloctrace-build-") as folder:
        command = [*compiler(), *WHOLE_PROGRAM, "-shared", "-fPIC", "-x", "c++", os.devnull, "-o", f"{folder}/probe"]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0


def jobs() -> int:
    """How many compilers run at once: MAX_JOBS, else as many as there are cores, within reason."""
    wanted = os.environ.get("MAX_JOBS", "")
    if wanted.isdecimal() and int(wanted) > 0:
        return int(wanted)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, MOST_JOBS)


def build(module: Module, output: Path, objects: Path, say: Callable[[str], None]) -> None:
    """Compiles what has changed since the last build into `objects`, and links it to `output`, which others may load
    in the same moment: it is replaced as a whole. Raises BuildError; `say` gets each command and its messages."""
    check_compiler()
    objects.mkdir(parents=True, exist_ok=True)
    object_of = {source: objects / ("-".join(source.parts[-3:]) + ".o") for source in module.sources}
    commands = {
        source: [
            *(*compiler(), *module.options, *APART.get(source.name, ())),
            *("-MMD", "-MF", f"{made}.d", "-c", str(source), "-o", str(made)),
        ]
        for source, made in object_of.items()
    }
    changed = [
        source for source in module.sources if not _is_current(object_of[source], commands[source], module.made_for)
    ]
    stop = threading.Event()

    def compile_one(number: int, source: Path) -> None:
        if stop.is_set():
            return
        try:
            _made(object_of[source], commands[source], module.made_for, f"[{number}/{len(changed)}]", say)
        except BaseException:
            stop.set()  # the first error is the one to show
            raise

    with ThreadPoolExecutor(jobs()) as pool:
        for done in [pool.submit(compile_one, number, source) for number, source in enumerate(changed, 1)]:
            done.result()
    linked = objects / "linked"
    link = [*compiler(), *map(str, object_of.values()), *module.link_options, "-o", str(linked)]
    if changed or not _is_current(linked, link, module.made_for):
        _made(linked, link, module.made_for, "link:", say)
    elif output.exists() and output.stat().st_mtime_ns > linked.stat().st_mtime_ns:
        return
    output.parent.mkdir(parents=True, exist_ok=True)
    unfinished = output.with_name(f"{output.name}.{os.getpid()}.unfinished")
    try:
        shutil.copyfile(linked, unfinished)
        with unfinished.open("rb+") as file:
            os.fsync(file.fileno())  # the loader dies of a file that a power failure has cut short
        os.replace(unfinished, output)
    finally:
        unfinished.unlink(missing_ok=True)


def _made(made: Path, command: list[str], made_for: str, step: str, say: Callable[[str], None]) -> None:
    """Runs a command that makes a file, and writes down what it was made with."""
    record = made.with_name(f"{made.name}.command")
    record.unlink(missing_ok=True)
    # The time at which it began, by the clock of the file system: a file edited since is newer.
    with tempfile.TemporaryFile(dir=made.parent) as started:
        time = os.fstat(started.fileno()).st_mtime_ns
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    said = done.stdout + done.stderr
    say(f"{step} {shlex.join(command)}\n{said}".strip())
    if done.returncode != 0:
        raise BuildError(_first_error(said) or f"{command[0]} ended with status {done.returncode}")
    os.utime(made, ns=(time, time))
    record.write_text(repr((command, made_for)), encoding="utf-8")


def _first_error(said: str) -> str:
    lines = [line.strip() for line in said.splitlines()]
    if any("Killed" in line for line in lines):
        return "the compiler was killed, perhaps for want of memory: try again with `MAX_JOBS=1`"
    marks = (" error: ", "undefined reference", "cannot find", "rror: ")
    return next((line for mark in marks for line in lines if mark in line), next(iter(lines), ""))


def _is_current(made: Path, command: list[str], made_for: str) -> bool:
    """Whether a file was made by this very command, and from no file that has changed since."""
    try:
        if made.with_name(f"{made.name}.command").read_text(encoding="utf-8") != repr((command, made_for)):
            return False
        time = made.stat().st_mtime_ns
        dependencies = made.with_name(f"{made.name}.d")
        if not dependencies.exists():
            return True
        # In the language of make: "object: file file \", a backslash before a space in a name.
        _, _, listed = dependencies.read_text(encoding="utf-8").replace("\\\n", " ").partition(": ")
        return all(Path(name).stat().st_mtime_ns < time for name in shlex.split(listed))
    except OSError:  # a header that is gone, for instance
        return False


@contextlib.contextmanager
def only_one(lock: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Waits until no other process holds the lock. Calls on_wait if it must."""
    import fcntl

    # Not through a link, whose target somebody else may have chosen.
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(descriptor, "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:
            pass  # a file system without locks: two builds then do the same work, each in a folder of its own
        yield


def seal(built: Path) -> None:
    """Writes down, next to a file, what is in it."""
    unfinished = seal_of(built).with_suffix(f".{os.getpid()}.unfinished")
    try:
        unfinished.write_text(_checksum(built), encoding="ascii")
        os.replace(unfinished, seal_of(built))
    finally:
        unfinished.unlink(missing_ok=True)


def is_sealed(built: Path) -> bool:
    """Whether a file is there and still what it was when it was sealed. The loader of shared libraries does not look:
    one that was cut short ends the program with SIGBUS."""
    try:
        return seal_of(built).read_text(encoding="ascii") == _checksum(built)
    except (OSError, ValueError):
        return False


def seal_of(built: Path) -> Path:
    """Return the path of the file that seal() writes."""
    return built.with_name(f"{built.name}.sha256")


def _checksum(built: Path) -> str:
    content = built.read_bytes()
    return f"{len(content)} {hashlib.sha256(content).hexdigest()}\n"


def main(request: dict[str, Any]) -> int:
    """Builds a recorder into a file, unless another process has done so by the time that it is this one's turn.

    Prints "waiting" and "building" when it does so, and last "failed: SENTENCE" if it could not.
    """
    # A program may ignore the ends of its children, and this one inherits that: every compiler would seem to succeed.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.umask(0o077)  # what is built will be executed: nobody else may write to it
    output, log = Path(request["output"]), Path(request["output"]).with_name("build.log")
    target = Target(**request["target"])
    lines: list[str] = []
    try:
        if target.abi != python_abi() or target.python != sys.version.split()[0]:
            raise BuildError(
                f"{sys.executable} is not the Python of this program, which is needed to build the recorder: run "
                "`python -m pytorch_alloctrace build` with that one first"
            )
        with only_one(output.with_name("lock"), lambda: print("waiting", flush=True)):
            if is_sealed(output):
                return 0
            print("building", flush=True)
            module = recorder(Path(request["csrc"]), target, Path(request["torch"]), request["packages"])
            with tempfile.TemporaryDirectory(prefix="alloctrace-build-") as objects:
                try:
                    build(module, output, Path(objects), lines.append)
                except BuildError as error:
                    log.write_text("\n".join(lines) + "\n", encoding="utf-8")
                    raise BuildError(
                        f"the recorder cannot be compiled for torch {target.torch}: {error} (all of it: {log})"
                    ) from None
            seal(output)
    except (BuildError, OSError) as error:
        print(f"failed: {error}", flush=True)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
