"""Build of the extension modules: _replay reads traces; _record records, and is built if torch can be imported.

The wheel contains the recorder's sources: enable() compiles them for the installed torch unless the recorder built here
matches that torch (pytorch_alloctrace/recording/loading.py).

Environment: ALLOCTRACE_READER_ONLY=1 builds _replay alone; ALLOCTRACE_WERROR=1 turns warnings of this project's own
code into errors; ALLOCTRACE_CHECKS=1 makes a check build (csrc/core/base/check.h); MAX_JOBS limits the number of
concurrent compilers; CXX names the compiler.
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

# Commands that compile nothing. pip calls several, so each must be quick. A source distribution is made in an isolated
# environment, so these commands must work even where a build would fail.
METADATA_COMMANDS = {"egg_info", "dist_info", "sdist", "clean"}


def load_building() -> Any:
    """Load building.py by path: importing the package would require dependencies that may not be installed yet."""
    path = ROOT / "pytorch_alloctrace" / "recording" / "building.py"
    spec = importlib.util.spec_from_file_location("building", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


building = load_building()


def fail(sentence: str) -> NoReturn:
    """Exit with one sentence, which pip shows as the last line of its report."""
    sys.stdout.flush()
    raise SystemExit(f"pytorch_alloctrace: {sentence}")


def is_importable(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:
        return False


def reason_for_no_recorder() -> str:
    """Return why the recorder is not built here, or "" if it is."""
    if os.environ.get("ALLOCTRACE_READER_ONLY") == "1":
        return "ALLOCTRACE_READER_ONLY=1 was set"
    if not sys.platform.startswith("linux"):
        return f"recording needs Linux, and this is {sys.platform}"
    if not is_importable("torch"):
        return "torch is not in this build environment"
    try:
        import torch
    except Exception as error:  # a broken torch raises OSError, RuntimeError or ImportError
        return f"torch cannot be imported ({error})"
    return f"torch {torch.__version__} is too old" if building.is_too_old(torch.__version__) else ""


def pybind11_include() -> str:
    """Return the folder of pybind11's headers, or of torch's copy if pybind11 is missing (--no-build-isolation)."""
    if is_importable("pybind11"):
        import pybind11

        return str(pybind11.get_include())
    torch = importlib.util.find_spec("torch")
    if torch is not None and torch.origin:
        return str(Path(torch.origin).parent / "include")
    fail("the build needs pybind11: run `pip install pybind11`, then again, or install without --no-build-isolation")


class BuildPython(build_py):
    """Build command that copies the recorder's sources into the package."""

    def run(self) -> None:
        super().run()
        if getattr(self, "editable_mode", False):
            return  # an editable install uses csrc next to the package
        target = Path(self.build_lib) / "pytorch_alloctrace" / "csrc"
        shutil.rmtree(target, ignore_errors=True)  # sources deleted since the last build must not be compiled
        for source in building.recorder_files(CSRC):
            copy = target / source.relative_to(CSRC)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, copy)


class BuildExtensions(build_ext):
    def run(self) -> None:
        Path("build").mkdir(exist_ok=True)
        # Two builds in one folder would overwrite each other's objects.
        with building.hold_lock(Path("build", "setup.lock"), print_waiting):
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
                # An earlier build in this tree may have left a recorder, which would be packed into the wheel.
                for stale in package.glob("_record.*"):
                    stale.unlink()
            (package / "_build_info.py").write_text(
                '"""Target that the recorder in this package was built for, or None. Written by setup.py."""\n\n'
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
        building.build(modules, CSRC, folder, building.find_ninja(), print_progress)


def print_progress(line: str) -> None:
    """Print a line of the build. pip hides the output, so in its terminal the step count replaces pip's own line."""
    print(line, flush=True)
    step = re.match(r"\[(\d+)/(\d+)\]", line)
    if not step or "PIP_BUILD_TRACKER" not in os.environ:
        return
    with contextlib.suppress(OSError):
        pip_stdout = Path(f"/proc/{os.getppid()}/fd/1").readlink()
        if str(pip_stdout).startswith(("/dev/pts/", "/dev/tty")):
            signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # a background job that writes would be stopped
            with pip_stdout.open("w") as terminal:
                # pip's spinner, and finally "done", overwrite the last space.
                terminal.write(f"\r  Building pytorch_alloctrace: compiling {step[1]} of {step[2]} ... \x1b[K ")


def print_waiting() -> None:
    print("pytorch_alloctrace: waiting for another build in this folder", file=sys.stderr, flush=True)


def main() -> None:
    os.chdir(ROOT)
    command = sys.argv[1] if len(sys.argv) > 1 else ""
    needs_wheel = command in ("bdist_wheel", "dist_info", "editable_wheel")
    if needs_wheel and not (is_importable("setuptools.command.bdist_wheel") or is_importable("wheel")):
        fail(
            "this setuptools cannot make wheels alone: run `pip install wheel`, or install without --no-build-isolation"
        )
    # setuptools needs only the names of the extension modules.
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
