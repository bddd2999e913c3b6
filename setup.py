"""Builds _replay, which reads traces, and, where torch can be imported, _record too, which records.

The recorder's sources go into the wheel: enable() compiles them for the torch that it finds, unless the recorder that
was built here fits (pytorch_alloctrace/recording/loading.py).

Environment: ALLOCTRACE_READER_ONLY=1 builds _replay alone; ALLOCTRACE_WERROR=1 turns warnings of this project's own
code into errors; MAX_JOBS bounds the compilers that run at once; CXX names the compiler.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
CSRC = ROOT / "csrc"

# Commands that compile nothing. They must be quick, since pip calls several, and must work where a build is refused: a
# source distribution is made in an isolated environment.
METADATA_COMMANDS = {"egg_info", "dist_info", "sdist", "clean"}


def load_building() -> Any:
    """The module that knows how to compile. By its path: the package itself imports what may not be installed yet."""
    path = ROOT / "pytorch_alloctrace" / "recording" / "building.py"
    spec = importlib.util.spec_from_file_location("building", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


building = load_building()


def fail(sentence: str) -> NoReturn:
    """Ends the build with one sentence, which pip shows as the last line of its report."""
    sys.stdout.flush()
    raise SystemExit(f"pytorch_alloctrace: {sentence}")


def is_importable(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:
        return False


def reason_for_no_recorder() -> str:
    """Empty when the recorder is built here, else why enable() will have to."""
    if os.environ.get("ALLOCTRACE_READER_ONLY") == "1":
        return "ALLOCTRACE_READER_ONLY=1 was set"
    if not sys.platform.startswith("linux"):
        return f"recording needs Linux, and this is {sys.platform}"
    if not is_importable("torch"):
        return "torch is not in this build environment"
    try:
        import torch
    except Exception as error:  # a torch that is broken fails in many ways: OSError, RuntimeError, ImportError
        return f"torch cannot be imported ({error})"
    return f"torch {torch.__version__} is too old" if building.is_too_old(torch.__version__) else ""


def pybind11_include() -> str:
    """pybind11's own headers, or torch's copy: without build isolation pip installs no build requirements."""
    if is_importable("pybind11"):
        import pybind11

        return str(pybind11.get_include())
    torch = importlib.util.find_spec("torch")
    if torch is not None and torch.origin:
        return str(Path(torch.origin).parent / "include")
    fail("the build needs pybind11: run `pip install pybind11`, then again, or install without --no-build-isolation")


class BuildPython(build_py):
    """Puts the sources of the recorder into the package."""

    def run(self) -> None:
        super().run()
        if getattr(self, "editable_mode", False):
            return  # they are found next to the package
        target = Path(self.build_lib) / "pytorch_alloctrace" / "csrc"
        shutil.rmtree(target, ignore_errors=True)  # one that was removed since must not be compiled
        for source in building.recorder_files(CSRC):
            copy = target / source.relative_to(CSRC)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, copy)


class BuildExtensions(build_ext):
    def run(self) -> None:
        Path("build").mkdir(exist_ok=True)
        # Two builds in one folder would overwrite each other's objects.
        with building.only_one(Path("build", "setup.lock"), say_that_it_waits):
            try:
                super().run()
            except building.BuildError as error:
                fail(str(error))
            package = Path("pytorch_alloctrace") if self.inplace else Path(self.build_lib) / "pytorch_alloctrace"
            package.mkdir(parents=True, exist_ok=True)
            recorder_for = "None"
            if any(extension.name.endswith("._record") for extension in self.extensions):
                import torch

                recorder_for = repr(building.target_of(torch)._asdict())
            else:
                # An earlier build in this tree may have left one, and a wheel takes all that lies there.
                for stale in package.glob("_record.*"):
                    stale.unlink()
            (package / "_build_info.py").write_text(
                '"""What the recorder in this package was built for, if there is one. Written by setup.py."""\n\n'
                "from typing import Any\n\n"
                f"RECORDER_FOR: dict[str, Any] | None = {recorder_for}\n",
                encoding="utf-8",
            )

    def build_extensions(self) -> None:
        modules = {}
        for extension in self.extensions:
            output = Path(self.get_ext_fullpath(extension.name)).absolute()
            if extension.name.endswith("._record"):
                import torch

                folder = Path(torch.__file__).parent
                modules[output] = building.recorder(CSRC, building.target_of(torch), folder, sys.path)
            else:
                modules[output] = building.reader(CSRC, pybind11_include())
        folder = Path(self.build_temp).absolute()
        building.build(modules, CSRC, folder, building.find_ninja(), say)


def say(line: str) -> None:
    """Print a line of a build. pip shows none of them until the end: in its terminal they take the place of its own."""
    print(line, flush=True)
    step = re.match(r"\[(\d+)/(\d+)\]", line)
    if not step or "PIP_BUILD_TRACKER" not in os.environ:
        return
    with contextlib.suppress(OSError):
        shown_by_pip = os.readlink(f"/proc/{os.getppid()}/fd/1")
        if shown_by_pip.startswith(("/dev/pts/", "/dev/tty")):
            signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # a background job that writes would be stopped
            with open(shown_by_pip, "w") as terminal:
                # pip puts a turning character over the last space, and "done" in the end.
                terminal.write(f"\r  Building pytorch_alloctrace: compiling {step[1]} of {step[2]} ... \x1b[K ")


def say_that_it_waits() -> None:
    print("pytorch_alloctrace: waiting for another build in this folder", file=sys.stderr, flush=True)


def main() -> None:
    os.chdir(ROOT)
    command = sys.argv[1] if len(sys.argv) > 1 else ""
    makes_wheel = command in ("bdist_wheel", "dist_info", "editable_wheel")
    if makes_wheel and not (is_importable("setuptools.command.bdist_wheel") or is_importable("wheel")):
        fail(
            "this setuptools cannot make wheels alone: run `pip install wheel`, or install without --no-build-isolation"
        )
    # setuptools only has to know that there are extension modules, and their names.
    extensions = [Extension("pytorch_alloctrace._replay", [])]
    if command not in METADATA_COMMANDS:
        if os.name != "posix":
            fail(f"this is {sys.platform}, where the package cannot be built: use Linux, or macOS to read traces")
        try:
            building.check_tools(building.find_ninja())
        except building.BuildError as error:
            fail(str(error))
        no_recorder = reason_for_no_recorder()
        if no_recorder:
            print(f"pytorch_alloctrace: without a recorder: {no_recorder}; enable() builds it", file=sys.stderr)
        else:
            extensions.append(Extension("pytorch_alloctrace._record", []))
    setup(ext_modules=extensions, cmdclass={"build_ext": BuildExtensions, "build_py": BuildPython})


main()
