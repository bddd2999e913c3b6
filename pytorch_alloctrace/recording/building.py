"""Build of the extension modules with ninja: which sources are compiled with which options.

setup.py loads this file before anything is installed, so it imports the standard library alone. enable() runs it as a
program (see loading.py): a compilation takes a minute of processor time, threads and memory, which must not come from
the process that is about to be recorded.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.machinery
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

MINIMUM_TORCH = (2, 9)
MINIMUM_GCC = 11
"""First release with every C++20 feature that csrc uses."""

# The folders of csrc that the modules are built from.
CORE = ("core/base", "core/format", "core/reading", "core/replay", "core/compaction")
"""Part of both modules: a recording with `max_bytes` reads its own trace. Includes neither torch nor Python."""
READER = ("core/follow", "core/what_if", "core/writing")
HOOK = ("core/recording", "core/bounding", "system")
WITH_CUDA, WITHOUT_CUDA = "torch/cuda", "torch/no_cuda"
CUDA_STAND_INS = "torch/cuda_stand_ins"
RECORDER = (*CORE, *HOOK, "python/recording", "torch")
RECORD_MODULE = "record_module.cpp"  # uses all of these folders

MAX_UNIT_LINES = 600
"""Maximum lines of a unit: files that are compiled together, so that headers are read once.

A higher limit takes less processor time in all, but makes a build after a change slower."""

# Link-time optimisation of the hook, whose parts are in three folders: smaller code leaves the program more of the
# instruction cache. In tools/bench/cuda an allocation costs a sixth less.
LTO_OPTIONS = ["-flto=auto"]
# These include an inline variable of torch's headers, the settings of its CUDA allocator. With LTO the module gets a
# copy of the variable, which must exist once per process.
NO_LTO_SOURCES = {"torch/cuda/allocator_settings.cpp"}
# Without this option, fields are written to the stack one by one and read back as vectors: each read waits for the
# writes. On one machine the hook without stacks took 1.5 times as long.
HOOK_OPTIONS = ["-fno-tree-slp-vectorize"]

MAX_COMPILERS = 8
"""Maximum number of compilers at once. Each takes up to 1 GB, which the waiting program may need."""


class BuildError(Exception):
    """Failed build: one sentence with the next command."""


class Target(NamedTuple):
    """Everything that a compiled recorder depends on, except its sources.

    The compiler is not part of it: releases of a compiler produce compatible code, and a machine without a compiler
    must find the recorder that another machine built (a login node, an earlier layer of an image).
    """

    torch: str
    torch_commit: str
    cuda: str | None
    cxx11_abi: bool
    python: str
    abi: str
    """Tag with the processor's architecture: "cpython-311-x86_64-linux-gnu"."""
    libc: str
    """C library and its version: machines with different ones may share a home folder."""


class Group(NamedTuple):
    sources: list[str]
    """Paths relative to csrc."""
    options: list[str]
    made_for: str = ""
    """Release of Python or torch whose headers the sources include."""


class Module(NamedTuple):
    groups: list[Group]
    link_options: list[str]


def python_abi() -> str:
    """Return the tag of modules that this interpreter loads, without loading its build settings."""
    return importlib.machinery.EXTENSION_SUFFIXES[0].removeprefix(".").removesuffix(".so")


def target_of(torch: Any) -> Target:
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


def sources(csrc: Path, *folders: str) -> list[str]:
    """Return the source files of these folders of csrc, relative to it, without those of subfolders."""
    return [f"{folder}/{path.name}" for folder in folders for path in sorted((csrc / folder).glob("*.cpp"))]


def recorder_files(csrc: Path) -> list[Path]:
    """Return all files that the recorder is built from, for any torch."""
    paths = {path for folder in RECORDER for path in (csrc / folder).rglob("*") if path.suffix in (".cpp", ".h", "")}
    paths.add(csrc / RECORD_MODULE)
    return sorted(path for path in paths if path.is_file() and not path.name.startswith("."))


def recorder_key(target: Target, csrc: Path) -> str:
    """Return the name of a recorder in the cache. It changes with everything that changes the binary."""
    digest = hashlib.sha256(repr((target, _options())).encode())
    for path in [*recorder_files(csrc), Path(__file__)]:
        content = path.read_bytes()
        digest.update(f"{path.name} {len(content)} ".encode() + content)
    return f"torch-{target.torch}-{target.abi}-{digest.hexdigest()[:16]}"


def reader(csrc: Path, pybind11_include: str) -> Module:
    return Module(
        groups=[
            Group(
                sources(csrc, "python/reading"), _options(pybind11_include, sysconfig.get_path("include")), python_abi()
            ),
            Group(sources(csrc, *CORE, *READER), _options()),
        ],
        link_options=["-bundle", "-undefined", "dynamic_lookup"] if sys.platform == "darwin" else ["-shared"],
    )


def recorder(csrc: Path, target: Target, torch_folder: Path, packages: list[str]) -> Module:
    """Return the recorder module. `packages`: folders with installed packages, among them those of CUDA."""
    include = torch_folder / "include"
    # Only torch's copy of pybind11: torch's headers include it, and two versions do not compile in one file.
    includes = [str(include), str(include / "torch" / "csrc" / "api" / "include"), sysconfig.get_path("include")]
    if not (include / "torch" / "csrc").is_dir():
        raise BuildError(
            f"the torch in {torch_folder} has no headers to compile the recorder with: install one from PyPI, "
            f"`pip install --force-reinstall torch=={target.torch.split('+')[0]}`"
        )
    libraries = ["c10", "torch", "torch_cpu", "torch_python"]
    if target.cuda is not None:
        includes += _cuda_includes(target.cuda, packages, csrc)
        libraries += ["c10_cuda", "torch_cuda"]
    lto_options = LTO_OPTIONS if _supports_lto() else []
    # The new ABI is the compiler's default.
    abi = [] if target.cxx11_abi else ["-D_GLIBCXX_USE_CXX11_ABI=0"]
    cuda = WITHOUT_CUDA if target.cuda is None else WITH_CUDA
    with_torch = [*sources(csrc, "torch", cuda, "python/recording"), RECORD_MODULE]
    options = [*_options(*includes), *abi, *HOOK_OPTIONS]
    return Module(
        groups=[
            Group(
                [source for source in with_torch if source not in NO_LTO_SOURCES],
                [*options, *lto_options],
                repr(target),
            ),
            Group([source for source in with_torch if source in NO_LTO_SOURCES], options, repr(target)),
            Group(sources(csrc, *HOOK), [*_options(), *abi, *HOOK_OPTIONS, *lto_options]),
            Group(sources(csrc, *CORE), [*_options(), *abi]),
        ],
        link_options=[
            *("-shared", "-O2", *lto_options, f"-L{torch_folder / 'lib'}"),
            *(f"-l{name}" for name in libraries),
        ],
    )


def _options(*system_includes: str) -> list[str]:
    # NDEBUG and -fwrapv as in Python's own extension modules: they change its headers, and torch's.
    options = ["-std=c++20", "-O2", "-g0", "-fPIC", "-DNDEBUG", "-fwrapv", "-fvisibility=hidden"]
    if os.environ.get("ALLOCTRACE_WERROR") == "1":
        options += ["-Wall", "-Wextra", "-Werror", "-Wno-subobject-linkage"]
    if os.environ.get("ALLOCTRACE_CHECKS") == "1":
        options += ["-DALLOCTRACE_CHECKS"]  # csrc/core/base/check.h
    # -isystem, not -I: third-party headers would fail the build under -Werror.
    return [*options, *(word for folder in system_includes for word in ("-isystem", folder))]


def _cuda_includes(cuda: str, packages: list[str], csrc: Path) -> list[str]:
    """Return the folders of CUDA's headers: of the pip packages that torch brings, else of a toolkit.

    The pip packages lack crt/ and nv/target. The host compiler needs only empty ones, which csrc/torch/cuda_stand_ins
    has: the last folder, so that a real header has precedence.
    """
    folders = [Path(folder) for folder in packages if folder]
    pip_folders = [folder / "nvidia" / f"cu{cuda.split('.')[0]}" / "include" for folder in folders]
    # Up to CUDA 12, each library has a separate folder.
    pip_folders += [include_folder for folder in folders for include_folder in sorted(folder.glob("nvidia/*/include"))]
    toolkits = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    candidates = [*pip_folders, *(Path(toolkit).absolute() / "include" for toolkit in toolkits if toolkit)]
    include_folders = [str(folder) for folder in candidates if folder.is_dir()]
    if not any((Path(folder) / "cuda_runtime_api.h").is_file() for folder in include_folders):
        raise BuildError(
            f"the headers of CUDA {cuda} are missing: run "
            f"`pip install nvidia-cuda-runtime{'-cu12' if cuda.startswith('12') else ''}=={cuda}.*`, "
            "or set CUDA_HOME to a CUDA toolkit"
        )
    return [*dict.fromkeys(include_folders), str(csrc / CUDA_STAND_INS)]


def check_tools(ninja: str) -> None:
    """Raise BuildError if no module can be built: without a compiler, Python's headers or ninja."""
    version = _query_compiler("-dumpversion").partition(".")[0]
    if version.isdecimal() and int(version) < MINIMUM_GCC and not _is_clang():
        raise BuildError(
            f"{shlex.join(compiler())} is GCC {version}, and GCC {MINIMUM_GCC} or newer is needed: install it and "
            f"name it, as in `CXX=g++-{MINIMUM_GCC}`"
        )
    header = Path(sysconfig.get_path("include"), "Python.h")
    if not header.is_file():
        python_name = f"python{sys.version_info[0]}.{sys.version_info[1]}"
        raise BuildError(
            f"Python's headers are missing ({header}): {_install_command(f'{python_name}-dev', 'python3-devel')}"
        )
    if not ninja:
        raise BuildError("ninja, which runs the compilers, is missing: run `pip install ninja`")


def compiler() -> list[str]:
    """Return the command of the compiler. Raises BuildError if there is none."""
    if requested_compiler := os.environ.get("CXX"):
        words = shlex.split(requested_compiler)
        if words and (path := shutil.which(words[0])):
            return [os.path.abspath(path) if os.sep in words[0] else words[0], *words[1:]]
        raise BuildError(
            f"there is no compiler CXX={requested_compiler}: run `unset CXX`, or name one that is installed"
        )
    for name in ("c++", "g++", "clang++"):
        if shutil.which(name):
            return [name]
    python_name = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    has_headers = Path(sysconfig.get_path("include"), "Python.h").is_file()
    packages = ("g++", "gcc-c++") if has_headers else (f"g++ {python_name}-dev", "gcc-c++ python3-devel")
    raise BuildError(f"there is no C++ compiler: {_install_command(*packages)}")


def _install_command(debian: str, fedora: str) -> str:
    return f"run `dnf install {fedora}`" if shutil.which("dnf") else f"run `apt-get install {debian}`"


def _query_compiler(option: str) -> str:
    return subprocess.run([*compiler(), option], capture_output=True, text=True, check=False).stdout.strip()


def _is_clang() -> bool:
    return "clang" in _query_compiler("--version")


def _supports_lto() -> bool:
    """Return whether compiler and linker support LTO_OPTIONS together.

    A GCC beside the linker of another release may not; clang needs a linker that is often missing.
    """
    if _is_clang():
        return False
    with tempfile.TemporaryDirectory(prefix="alloctrace-build-") as folder:
        command = [*compiler(), *LTO_OPTIONS, "-shared", "-fPIC", "-x", "c++", os.devnull, "-o", f"{folder}/probe"]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0


def jobs() -> int:
    """Return the number of compilers to run at once: MAX_JOBS, else the number of cores, up to MAX_COMPILERS."""
    requested_jobs = os.environ.get("MAX_JOBS", "")
    if requested_jobs.isdecimal() and int(requested_jobs) > 0:
        return int(requested_jobs)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, MAX_COMPILERS)


def find_ninja() -> str:
    """Return the path of ninja in this environment, the user's scripts or PATH, in this order; "" if there is none."""
    user_scripts = sysconfig.get_path("scripts", sysconfig.get_preferred_scheme("user"))
    target_scripts = (os.path.join(folder, "bin") for folder in sys.path)  # pip install --target
    folders = [sysconfig.get_path("scripts"), user_scripts, *os.get_exec_path(), *target_scripts]
    path = shutil.which("ninja", path=os.pathsep.join(folders))
    return os.path.abspath(path) if path else ""


def build(modules: Mapping[Path, Module], csrc: Path, folder: Path, ninja: str, on_line: Callable[[str], None]) -> None:
    """Build each module into the file that is its key. Current objects in `folder` are reused.

    `on_line` gets a line per object, "[12/46] compiling core/base/a.cpp and 2 more", and the compilers' output. Raises
    BuildError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "build.ninja").write_bytes(os.fsencode(ninja_rules(modules, csrc, folder)))
    lines = []
    with subprocess.Popen(
        [ninja, f"-j{jobs()}"],
        cwd=folder,
        env={**os.environ, "NINJA_STATUS": "[%f/%t] ", "LC_ALL": "C"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line.strip())
            on_line(line.rstrip())
    if process.returncode != 0:
        raise BuildError(_first_error(lines))


def ninja_rules(modules: Mapping[Path, Module], csrc: Path, folder: Path) -> str:
    """Return the text of a build.ninja, and write the units that it names into the folder."""
    compiler_words, version = _quote_words(compiler()), _query_compiler("--version")
    rules = [
        "rule compile",
        f"  command = {compiler_words} -iquote {_quote_words([str(csrc)])} $options -MMD -MF $out.d -c $in -o $out",
        "  deps = gcc",
        "  depfile = $out.d",
        "  description = compiling $unit",
        "rule link",  # mv replaces the module atomically: another process may be loading it
        f"  command = {compiler_words} $in $options -o $out.$$$$ && mv -f $out.$$$$ $out",
        "  description = linking",
    ]
    edges: list[str] = []
    for output, module in modules.items():
        objects = []
        for group in module.groups:
            options = _quote_words(group.options)
            # Absolute paths stay out of object names: a compiler cache must find the same names in every build folder.
            flags = [word for word in group.options if not Path(word).is_absolute()]
            for files in _split_into_units(csrc, group.sources):
                key = hashlib.sha256(f"{flags} {group.made_for} {version} {files}".encode()).hexdigest()[:8]
                name = f"{files[0].removesuffix('.cpp').replace('/', '-')}.{key}"
                objects.append(f"{name}.o")
                path, text = folder / f"{name}.cpp", "".join(f'#include "{file}"\n' for file in files)
                if not path.exists() or path.read_text() != text:  # ninja would compile a rewritten file again
                    path.write_text(text)
                unit = files[0] + (f" and {len(files) - 1} more" if len(files) > 1 else "")
                edges.append(f"build {name}.o: compile {name}.cpp\n  options = {options}\n  unit = {unit}")
        edges.append(
            f"build {_escape_path(output)}: link {' '.join(objects)}\n  options = {_quote_words(module.link_options)}"
        )
    return "\n".join([*rules, *dict.fromkeys(edges), ""])  # modules may share objects


def _split_into_units(csrc: Path, files: list[str]) -> list[list[str]]:
    units: list[list[str]] = []
    unit_lines = 0
    for file in files:
        line_count = (csrc / file).read_bytes().count(b"\n")
        if not units or unit_lines + line_count > MAX_UNIT_LINES:
            units.append([])
            unit_lines = 0
        units[-1].append(file)
        unit_lines += line_count
    return units


def _quote_words(words: Iterable[str]) -> str:
    return shlex.join(words).replace("$", "$$")


def _escape_path(path: Path) -> str:
    return re.sub(r"([$ :])", r"$\1", str(path))


def _first_error(lines: list[str]) -> str:
    if any("Killed" in line for line in lines):
        return "the compiler was killed, perhaps because memory ran out: try again with `MAX_JOBS=1`"
    error_markers = (" error: ", "undefined reference", "cannot find", "rror: ")
    # "FAILED: OBJECT" is followed by the command, then by the compiler's output.
    failed_line = next((number for number, line in enumerate(lines) if line.startswith("FAILED: ")), -1)
    output_lines = [
        line for line in lines[failed_line + 1 :] if not line.startswith((shlex.join(compiler()), "[", "FAILED: "))
    ]
    fallback = f"{shlex.join(compiler())} failed without a message"
    if output_lines and not output_lines[0].startswith(("ninja: ", "In file included from ")):
        fallback = output_lines[0]
    return next((line for marker in error_markers for line in output_lines if marker in line), fallback)


@contextlib.contextmanager
def hold_lock(lock: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Wait until no other process holds the lock. Calls `on_wait` if another does."""
    import fcntl

    # O_NOFOLLOW: another user may have placed a link here.
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:
            pass  # a file system without locks: two builds then do the same work in separate folders
        yield


def seal(path: Path) -> None:
    """Write the checksum of a file into the file `seal_of(path)`."""
    unfinished = seal_of(path).with_suffix(f".{os.getpid()}.unfinished")
    try:
        unfinished.write_text(_checksum(path), encoding="ascii")
        unfinished.replace(seal_of(path))
    finally:
        unfinished.unlink(missing_ok=True)


def is_sealed(path: Path) -> bool:
    """Return whether a file exists and matches its checksum.

    The loader of shared libraries does not check: loading a truncated one ends the program with SIGBUS.
    """
    try:
        return seal_of(path).read_text(encoding="ascii") == _checksum(path)
    except (OSError, ValueError):
        return False


def seal_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


def _checksum(path: Path) -> str:
    content = path.read_bytes()
    return f"{len(content)} {hashlib.sha256(content).hexdigest()}\n"


def main(request: dict[str, Any]) -> int:
    """Build a recorder into a file, unless another process builds it while this one waits.

    Prints "waiting" while another process builds, "building" at the start, lines of progress ("[12/46] ..."), and
    "failed: SENTENCE" on failure.
    """
    # SIGCHLD may be inherited as ignored: exit statuses are then lost, and every compiler would seem to succeed.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.umask(0o077)  # the output is executed: no other user may write to it
    output, log = Path(request["output"]), Path(request["output"]).with_name("build.log")
    target = Target(**request["target"])
    lines: list[str] = []

    def print_progress(line: str) -> None:
        lines.append(line)
        if line.startswith("["):
            with contextlib.suppress(BrokenPipeError):  # the program has ended: build for the next one
                print(line, flush=True)

    try:
        if target.abi != python_abi() or target.python != sys.version.split()[0]:
            raise BuildError(
                f"the recorder must be built by the Python of this program, and {sys.executable} is another one: run "
                "`python -m pytorch_alloctrace build` with the program's Python first"
            )
        with hold_lock(output.with_name("lock"), lambda: print("waiting", flush=True)):
            if is_sealed(output):
                return 0
            print("building", flush=True)
            check_tools(request["ninja"])
            csrc = Path(request["csrc"])
            module = recorder(csrc, target, Path(request["torch"]), request["packages"])
            with tempfile.TemporaryDirectory(prefix="alloctrace-build-") as folder:
                try:
                    build({output: module}, csrc, Path(folder), request["ninja"], print_progress)
                except BuildError as error:
                    log.write_text("\n".join(lines) + "\n", encoding="utf-8")
                    raise BuildError(
                        f"the recorder cannot be compiled for torch {target.torch}: {error} (full output: {log})"
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
