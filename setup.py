"""Builds the two extension modules: _replay, which reads traces, and _record, which needs torch and Linux.

Environment: ALLOCTRACE_READER_ONLY=1 builds the reading half only; ALLOCTRACE_WERROR=1 turns warnings of this project's
own code into errors; MAX_JOBS bounds the compilers that run at once (with ninja).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext as plain_build_ext

ROOT = Path(__file__).resolve().parent
MINIMUM_TORCH = (2, 9)

# The folders of csrc that each module is built from. A new file needs no entry here.
SHARED = ("core/base", "core/format")
READER = (*SHARED, "core/reading", "core/replay", "python/reading")
# These make Linux calls and include torch's headers: the reading half compiles none of them.
RECORDER = (*SHARED, "core/recording", "system", "python/recording", "torch")
WITH_CUDA, WITHOUT_CUDA = "torch/cuda", "torch/no_cuda"

# Commands that compile nothing. They must not import torch (seconds, for each of pip's three calls), and must work
# where a build is refused: a source distribution is made in an isolated environment.
METADATA_COMMANDS = {"egg_info", "dist_info", "sdist", "clean"}

HIDDEN_TORCH = (
    "pytorch_alloctrace: this isolated build cannot see the torch that the recorder has to be compiled for; "
    "run `pip install --no-build-isolation .` instead "
    "(or set ALLOCTRACE_READER_ONLY=1 for a build that only reads traces)"
)


def fail(sentence: str) -> NoReturn:
    """Ends the build with one sentence, which pip shows as the last line of its report."""
    sys.stdout.flush()
    raise SystemExit(sentence)


def is_importable(module: str) -> bool:
    from importlib.util import find_spec

    return find_spec(module) is not None


def target_has_torch() -> bool:
    """Whether the interpreter that runs this build finds torch when it is started without pip's isolation.

    pip isolates through PYTHONPATH and a sitecustomize in it; the interpreter is the one of the target environment.
    Asking it, rather than looking for a folder, finds torch in user folders, in inherited site-packages and behind .pth
    files too.
    """
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "PYTHONNOUSERSITE", "PYTHONHOME")
    }
    question = "import importlib.util, sys; sys.exit(0 if importlib.util.find_spec('torch') else 3)"
    # From the root: a folder that happens to be named torch in the working directory is not an installed torch.
    answer = subprocess.run([sys.executable, "-c", question], env=environment, cwd=os.sep, check=False)
    return answer.returncode == 0


def target_is_hidden() -> bool:
    """Whether this is the temporary virtual environment of `build` or `uv`, from which the target cannot be found."""
    prefix = Path(sys.prefix)
    return prefix.name.startswith("build-env-") or any(part.startswith("builds-v") for part in prefix.parts)


def reason_for_no_recorder() -> str:
    """Empty when the recorder is to be built, else why it is not.

    Ends the build where leaving it out would be a surprise.
    """
    if os.environ.get("ALLOCTRACE_READER_ONLY") == "1":
        return "ALLOCTRACE_READER_ONLY=1 was set"
    if not sys.platform.startswith("linux"):
        return f"recording needs Linux, and this is {sys.platform}"
    if not is_importable("torch"):
        if target_has_torch() or target_is_hidden():
            fail(HIDDEN_TORCH)
        return "torch was not installed"
    try:
        import torch
    except Exception as error:  # a torch that is broken fails in many ways: OSError, RuntimeError, ImportError
        fail(f"pytorch_alloctrace: torch is installed but cannot be imported ({error}): mend it first")
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if version < MINIMUM_TORCH:
        wanted = ".".join(map(str, MINIMUM_TORCH))
        fail(
            f"pytorch_alloctrace: the recorder needs torch {wanted} or newer, and this is {torch.__version__}: "
            "update torch, or set ALLOCTRACE_READER_ONLY=1 for a build that only reads traces"
        )
    return ""


def sources(*folders: str) -> list[str]:
    """The files of these folders of csrc, without those of the folders in them."""
    return [
        path.relative_to(ROOT).as_posix()
        for folder in folders
        for path in sorted((ROOT / "csrc" / folder).glob("*.cpp"))
    ]


def find_ninja() -> None:
    """Puts this environment's ninja on PATH, where torch looks for it: the environment need not be activated."""
    if is_importable("ninja"):
        import ninja

        os.environ["PATH"] = os.pathsep.join([os.environ.get("PATH", os.defpath), ninja.BIN_DIR])


def headers() -> list[str]:
    return sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "csrc").rglob("*.h"))


# The hook, whole: its parts lie in three folders, and its code competes with the program's for the nearest cache. In
# tools/bench/cuda this takes a sixth off what an allocation costs.
WHOLE_PROGRAM = ["-flto=auto"]
HOOK_CODE = [*WHOLE_PROGRAM, "-fno-semantic-interposition", "-fno-plt"]


def compile_arguments(system_includes: list[str]) -> list[str]:
    arguments = ["-std=c++20", "-O2", "-g0", "-fvisibility=hidden"]
    if os.environ.get("ALLOCTRACE_WERROR") == "1":
        arguments += ["-Wall", "-Wextra", "-Werror"]
    # -isystem, not -I: warnings in the headers of others are not ours to mend.
    for folder in [*system_includes, sysconfig.get_path("include")]:
        arguments += ["-isystem", folder]
    return arguments


def pybind11_include() -> str:
    """pybind11's own headers, or torch's copy: without build isolation pip installs no build requirements."""
    if is_importable("pybind11"):
        import pybind11

        return str(pybind11.get_include())
    if is_importable("torch"):
        from torch.utils.cpp_extension import include_paths

        return str(include_paths()[0])
    fail("pytorch_alloctrace: the build needs pybind11: run `pip install pybind11 ninja`, then again")


def replay_extension() -> Extension:
    return Extension(
        "pytorch_alloctrace._replay",
        sources(*READER),
        depends=[*headers(), "setup.py"],
        extra_compile_args=compile_arguments([pybind11_include()]),
        language="c++",
    )


def cuda_includes(cuda: str) -> list[str]:
    """Folders of CUDA's headers: those of the pip packages that torch brings, else those of a toolkit.

    The pip packages leave out the folder crt/; the two headers of it that are included say nothing to a host compiler,
    and csrc/torch/cuda_crt stands in for them. It comes last: a real one is used where there is one.
    """
    packages = [Path(folder) for folder in sys.path if folder]
    pip_folders = [folder / "nvidia" / f"cu{cuda.split('.')[0]}" / "include" for folder in packages]
    # Up to CUDA 12 each library had a folder of its own.
    pip_folders += [found for folder in packages for found in sorted(folder.glob("nvidia/*/include"))]
    toolkits = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    candidates = [*pip_folders, *(Path(toolkit) / "include" for toolkit in toolkits if toolkit)]
    found = [str(folder) for folder in candidates if folder.is_dir()]
    if not any((Path(folder) / "cuda_runtime_api.h").is_file() for folder in found):
        fail(
            f"pytorch_alloctrace: the headers of CUDA {cuda} are missing: run "
            f"`pip install nvidia-cuda-runtime{'-cu12' if cuda.startswith('12') else ''}=={cuda}.*`, "
            "or set CUDA_HOME to a CUDA toolkit"
        )
    return [*dict.fromkeys(found), str(ROOT / "csrc" / "torch" / "cuda_crt")]


def record_extension() -> Extension:
    import torch
    from torch.utils.cpp_extension import include_paths, library_paths

    includes, libraries = include_paths(), ["c10", "torch", "torch_cpu", "torch_python"]
    if torch.version.cuda is not None:
        includes += cuda_includes(str(torch.version.cuda))
        libraries += ["c10_cuda", "torch_cuda"]
    # Only torch's copy of pybind11 here: its headers include pybind11 too, and two versions must not meet in one file.
    return Extension(
        "pytorch_alloctrace._record",
        sources(*RECORDER, WITHOUT_CUDA if torch.version.cuda is None else WITH_CUDA),
        depends=[*headers(), "setup.py"],
        extra_compile_args=[*compile_arguments(includes), *HOOK_CODE],
        extra_link_args=[*WHOLE_PROGRAM, "-O2"],
        libraries=libraries,
        library_dirs=library_paths(),
        language="c++",
    )


def build_info(no_recorder: str) -> str:
    """The text of _build_info.py, which enable() compares with what it runs under."""
    torch_version, cuda_version = "", None
    if not no_recorder:
        import torch

        torch_version, cuda_version = str(torch.__version__), torch.version.cuda
    # json, for the quotes that the formatter wants.
    return (
        '"""What this package was built for. Written by setup.py."""\n\n'
        f"TORCH_VERSION: str = {json.dumps(torch_version)}\n"
        f"CUDA_VERSION: str | None = {json.dumps(cuda_version) if cuda_version else None}\n"
        f"PYTHON_ABI: str = {json.dumps(sysconfig.get_config_var('SOABI'))}\n"
        f"RECORDER: bool = {not no_recorder}\n"
        f"NO_RECORDER_REASON: str = {json.dumps(no_recorder)}\n"
    )


@contextlib.contextmanager
def only_one_build() -> Iterator[None]:
    """Waits until no other build runs in this folder: two would overwrite each other's objects."""
    if os.name != "posix":
        yield
        return
    import fcntl

    Path("build").mkdir(exist_ok=True)
    with open("build/setup.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("pytorch_alloctrace: waiting for another build in this folder", file=sys.stderr, flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def make_build_command(base: type[Any], no_recorder: str) -> type[Any]:
    class BuildExtensions(base):  # type: ignore[misc]
        def run(self) -> None:
            with only_one_build():
                super().run()
                package = Path("pytorch_alloctrace") if self.inplace else Path(self.build_lib) / "pytorch_alloctrace"
                package.mkdir(parents=True, exist_ok=True)
                if no_recorder:
                    # An earlier build in this tree may have left one, and a wheel takes all that lies there.
                    for stale in package.glob("_record.*"):
                        stale.unlink()
                (package / "_build_info.py").write_text(build_info(no_recorder), encoding="utf-8")

        def build_extension(self, extension: Extension) -> None:
            # A folder for each: both compile csrc/core, with other options, and would overwrite each other's objects.
            shared = self.build_temp
            self.build_temp = os.path.join(shared, extension.name)
            # setuptools compares times of files only: a build with other options, or for another torch, is none.
            key = hashlib.sha256(repr((extension.extra_compile_args, build_info(no_recorder))).encode()).hexdigest()
            stamp = Path(self.build_temp) / "options"
            unchanged = stamp.is_file() and stamp.read_text() == key
            forced, self.force = self.force, self.force or not unchanged
            try:
                super().build_extension(extension)
            finally:
                self.build_temp, self.force = shared, forced
            stamp.parent.mkdir(parents=True, exist_ok=True)
            stamp.write_text(key)

    return BuildExtensions


def main() -> None:
    os.chdir(ROOT)
    if sys.argv[1:2] and sys.argv[1] in METADATA_COMMANDS:
        setup(ext_modules=[Extension("pytorch_alloctrace._replay", ["csrc/python/reading/replay_module.cpp"])])
        return
    if "bdist_wheel" in sys.argv and not (is_importable("setuptools.command.bdist_wheel") or is_importable("wheel")):
        fail("pytorch_alloctrace: this setuptools cannot make wheels alone: run `pip install wheel`, then again")
    no_recorder = reason_for_no_recorder()
    extensions, base = [replay_extension()], plain_build_ext
    if no_recorder:
        print(f"pytorch_alloctrace: building the reading half only: {no_recorder}", file=sys.stderr)
    else:
        find_ninja()
        from torch.utils.cpp_extension import BuildExtension

        extensions.append(record_extension())
        base = BuildExtension
    setup(ext_modules=extensions, cmdclass={"build_ext": make_build_command(base, no_recorder)})


main()
