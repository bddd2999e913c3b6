"""Builds with a torch that can be imported, their stamp, and the calls that the reading half may use."""

from __future__ import annotations

import os
import platform
import re
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
from running import ROOT
from test_install import run

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.recording import building

SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")


def test_build_is_stamped_with_its_torch_and_python() -> None:
    import torch

    from pytorch_alloctrace import _build_info

    stamp = _build_info.RECORDER_FOR
    assert (stamp["torch"], stamp["cuda"]) == (torch.__version__, torch.version.cuda)
    assert stamp["abi"] == sysconfig.get_config_var("SOABI") and stamp["python"] == platform.python_version()


@pytest.mark.slow("builds")
def test_a_build_without_isolation_makes_both_modules(tmp_path: Path) -> None:
    # In this checkout, whose objects are up to date: that saves minutes.
    options = ["--no-build-isolation", "--no-deps", "--wheel-dir", tmp_path / "wheels"]
    inherited = {name: value for name, value in os.environ.items() if name == "ALLOCTRACE_WERROR"}
    made = run([sys.executable, "-m", "pip", "wheel", *options, "."], ROOT, **inherited)
    assert made.returncode == 0, made.stdout + made.stderr
    (wheel,) = (tmp_path / "wheels").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    package = tmp_path / "installed" / "pytorch_alloctrace"
    built = {"_build_info.py", f"_record{SUFFIX}", f"_replay{SUFFIX}", "py.typed"}
    assert built <= {path.name for path in package.iterdir()}
    assert (package / "recording" / "_follow" / "sitecustomize.py").is_file()

    program = "import sys, torch, pytorch_alloctrace as a; "
    program += "a.enable(sys.argv[1]); x = torch.ones(54321); a.disable(); print(a.__file__)"
    command = [sys.executable, "-c", program, tmp_path / "new.alloctrace"]
    ran = run(command, tmp_path, PYTHONPATH=str(tmp_path / "installed"))
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith(str(package))
    assert 4 * 54321 in list(alloctrace.load(tmp_path / "new.alloctrace").live("end")["nbytes"])


def test_the_reading_half_has_no_linux_calls() -> None:
    """Check that the reading half uses nothing that macOS lacks: the test machines have no macOS to compile on."""
    read: set[Path] = set()
    for file in building.reader(ROOT / "csrc", "").sources:
        read_with_headers(file, read)
    names = {path.name for path in read}
    assert "trace_reader.cpp" in names and "spool_writer.cpp" not in names
    found = {path.name: sorted({*LINUX_ONLY.findall(path.read_text(encoding="utf-8"))}) for path in read}
    assert {name: calls for name, calls in found.items() if calls} == {}


LINUX_ONLY = re.compile(
    r"<linux/[^>]*>|<asm/[^>]*>|<malloc\.h>|<sys/(?:eventfd|prctl|syscall|sysinfo|sendfile)\.h>"
    # On macOS, pthread_setname_np takes the name alone, and there is no other clock for semaphores.
    r"|pthread_setname_np|sem_clockwait|\b(?:posix_fallocate|fallocate|mremap|memfd_create|gettid|fdatasync|MAP_POPULATE|fstat64|open64)\b|/proc/"
)


def read_with_headers(file: Path, read: set[Path]) -> None:
    """Add a file and the headers of this project that it includes, directly or indirectly, to `read`."""
    if file in read:
        return
    read.add(file)
    for name in re.findall(r'^#include "([^"]+)"', file.read_text(encoding="utf-8"), re.MULTILINE):
        header = (file.parent / name).resolve()
        if header.is_file():
            read_with_headers(header, read)
