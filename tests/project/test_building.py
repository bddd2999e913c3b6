"""Compilation of modules: only changed sources, several at once, and each failure in one sentence."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from running import ROOT

from pytorch_alloctrace.recording import building
from pytorch_alloctrace.recording.building import BuildError, Group, Module

CXX = os.environ.get("CXX", "c++")
NINJA = building.find_ninja()


class Project:
    """Two modules of the same two sources, which share a header, in a folder whose name has a space."""

    def __init__(self, folder: Path) -> None:
        self.csrc = folder / "with space"
        self.outputs = [folder / "$out put" / "module.so", folder / "$out put" / "other.so"]
        self.options = ["-fPIC"]
        self.stamp = "this"
        self.write("common.h", "int common();")
        self.write("first/one.cpp", '#include "../common.h"\nint one() { return common(); }')
        self.write("second/two.cpp", "int two() { return 2; }")

    def write(self, name: str, text: str) -> None:
        path = self.csrc / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")

    def build(self) -> list[str]:
        """Build both modules; return the units that were compiled."""
        messages: list[str] = []
        folders = [building.sources(self.csrc, folder) for folder in ("first", "second")]
        module = Module([Group(files, self.options, self.stamp) for files in folders], ["-shared"])
        building.check_tools(NINJA)
        modules = dict.fromkeys(self.outputs, module)
        building.build(modules, self.csrc, self.csrc.parent / "objects", NINJA, messages.append)
        return sorted(line.split("compiling ")[1] for line in messages if " compiling " in line)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def read_symbols(module: Path) -> str:
    return subprocess.run(["nm", "-D", module], capture_output=True, text=True, check=True).stdout


def test_build_compiles_changed_sources_once_for_all_modules(project: Project) -> None:
    assert project.build() == ["first/one.cpp", "second/two.cpp"]

    built_at = [output.stat().st_mtime_ns for output in project.outputs]
    assert project.build() == [] and [output.stat().st_mtime_ns for output in project.outputs] == built_at

    project.write("common.h", "int common(); // edited")
    assert project.build() == ["first/one.cpp"] and project.outputs[0].stat().st_mtime_ns > built_at[0]

    project.options.append("-O1")
    assert project.build() == ["first/one.cpp", "second/two.cpp"]

    project.stamp = "another torch"
    assert project.build() == ["first/one.cpp", "second/two.cpp"]

    project.outputs[0].unlink()
    assert project.build() == [] and project.outputs[0].exists()


def test_sources_with_same_options_share_a_unit_up_to_max_lines(project: Project) -> None:
    project.build()
    project.write("second/three.cpp", "int three() { return 3; }")
    assert project.build() == ["second/three.cpp and 1 more"]
    assert all(name in read_symbols(project.outputs[0]) for name in ("one", "two", "three"))

    project.write("second/three.cpp", "\n" * building.MAX_UNIT_LINES + "int three() { return 3; }")
    assert project.build() == ["second/three.cpp"]  # the object of two.cpp exists

    # The module does not contain a deleted source.
    (project.csrc / "second" / "two.cpp").unlink()
    assert project.build() == []
    assert "three" in read_symbols(project.outputs[0]) and "two" not in read_symbols(project.outputs[0])


def test_compile_error_is_one_sentence_and_keeps_the_modules(project: Project) -> None:
    project.build()
    before = [output.read_bytes() for output in project.outputs]
    project.write("second/two.cpp", "int two() { return missing; }")

    for _ in range(2):  # the second build must fail too
        with pytest.raises(BuildError, match=r"two\.cpp:1:\d+: error: .missing. was not declared") as failure:
            project.build()
        assert "\n" not in str(failure.value)
    assert [output.read_bytes() for output in project.outputs] == before
    assert sorted(project.outputs[0].parent.iterdir()) == project.outputs


def write_script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_build_error_names_command_if_compiler_is_missing_or_fails(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build_error() -> str:
        with pytest.raises(BuildError) as failure:
            project.build()
        return str(failure.value)

    monkeypatch.setenv("CXX", "no-such-compiler -O9")
    assert build_error().startswith("there is no compiler CXX=no-such-compiler -O9: run `unset CXX`")

    old = 'case $1 in -dumpversion) echo 9;; *) echo "g++ 9.4.0";; esac'
    monkeypatch.setenv("CXX", write_script(tmp_path / "old", old))
    assert f"is GCC 9, and GCC {building.MINIMUM_GCC} or newer is needed" in build_error()

    message = "c++: fatal error: Killed signal terminated program"
    killed = f'case $1 in -dumpversion) echo 12;; *) echo "{message}" >&2; exit 1;; esac'
    monkeypatch.setenv("CXX", write_script(tmp_path / "killed", killed))
    assert "because memory ran out: try again with `MAX_JOBS=1`" in build_error()

    monkeypatch.delenv("CXX")
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert build_error() == "there is no C++ compiler: run `apt-get install g++`"

    monkeypatch.setattr("sysconfig.get_path", lambda *names: str(tmp_path / "empty"))
    python = f"python3.{sys.version_info[1]}"
    assert build_error() == f"there is no C++ compiler: run `apt-get install g++ {python}-dev`"

    write_script(tmp_path / "empty" / "dnf", "")
    assert build_error() == "there is no C++ compiler: run `dnf install gcc-c++ python3-devel`"

    monkeypatch.setattr("sys.path", [])
    assert building.find_ninja() == ""

    write_script(tmp_path / "empty" / "c++", "echo 12")
    assert build_error().startswith("Python's headers are missing (") and "`dnf install python3-devel`" in build_error()


def test_number_of_compilers_is_limited_by_max_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAX_JOBS", "3")

    assert building.jobs() == 3
    for invalid in ("", "0", "many"):
        monkeypatch.setenv("MAX_JOBS", invalid)
        assert 1 <= building.jobs() <= building.MAX_COMPILERS


@pytest.mark.parametrize("linker_works", [True, False])
def test_recorder_uses_lto_only_if_linker_supports_it(
    linker_works: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cannot_link = 'case "$*" in *-flto*-shared*) echo "ld: error: could not run lto-wrapper" >&2; exit 1;; esac'
    if not linker_works:
        monkeypatch.setenv("CXX", write_script(tmp_path / "c++", f'{cannot_link}\nexec {CXX} "$@"'))
    (tmp_path / "torch" / "include" / "torch" / "csrc").mkdir(parents=True)
    target = building.Target("2.11.0", "", None, True, "3.11.7", "cpython-311", "")
    module = building.recorder(ROOT / "csrc", target, tmp_path / "torch", [])

    for options in (module.groups[0].options, module.link_options):
        assert ("-flto=auto" in options) == linker_works


def test_build_error_names_package_of_missing_cuda_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch" / "include" / "torch" / "csrc").mkdir(parents=True)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.setattr(Path, "is_dir", hide_toolkit(Path.is_dir))
    for cuda, package in (("13.0", "nvidia-cuda-runtime==13.0.*"), ("12.8", "nvidia-cuda-runtime-cu12==12.8.*")):
        target = building.Target("2.11.0", "", cuda, True, "3.11.7", "cpython-311", "")
        with pytest.raises(BuildError) as failure:
            building.recorder(ROOT / "csrc", target, tmp_path / "torch", [str(tmp_path)])
        assert f"the headers of CUDA {cuda} are missing: run `pip install {package}`" in str(failure.value)

    # Without CUDA, neither these headers nor the sources that include them are needed.
    module = building.recorder(ROOT / "csrc", target._replace(cuda=None), tmp_path / "torch", [str(tmp_path)])
    folders = {os.path.dirname(source) for group in module.groups for source in group.sources}
    assert "torch/no_cuda" in folders and "torch/cuda" not in folders
    with pytest.raises(BuildError, match=r"has no headers to compile the recorder with"):
        building.recorder(ROOT / "csrc", target, tmp_path, [])


@pytest.mark.skipif(torch.version.cuda is None, reason="this torch is without CUDA")
def test_headers_of_torch_packages_suffice_without_toolkit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile library_blocks.cpp, which includes more CUDA headers than any other source."""
    monkeypatch.setattr(Path, "is_dir", hide_toolkit(Path.is_dir))
    module = building.recorder(ROOT / "csrc", building.target_of(torch), Path(torch.__file__).parent, sys.path)
    source = "torch/cuda/library_blocks.cpp"
    (group,) = [group for group in module.groups if source in group.sources]
    assert not [option for option in group.options if "/usr/local/cuda" in option]

    command = [CXX, *group.options, "-fsyntax-only", ROOT / "csrc" / source]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr


def hide_toolkit(is_dir: Callable[[Path], bool]) -> Callable[[Path], bool]:
    return lambda path: not str(path).startswith("/usr/local/cuda") and is_dir(path)


def test_recorder_key_changes_with_target_and_sources(tmp_path: Path) -> None:
    for folder in building.RECORDER:
        (tmp_path / folder).mkdir(parents=True)
    source = tmp_path / building.RECORDER[0] / "a.cpp"
    source.write_text("1")
    target = building.Target("2.11.0+cu130", "70d99e9", "13.0", True, "3.11.7", "cpython-311-x86_64-linux-gnu", "glibc")
    others: list[dict[str, object]] = [
        *({"torch": "2.11.1+cu130"}, {"torch_commit": "0"}, {"cuda": None}, {"cxx11_abi": False}),
        *({"python": "3.11.8"}, {"abi": "cpython-311-aarch64-linux-gnu"}, {"libc": "glibc 2.36"}),
    ]
    assert {name for other in others for name in other} == set(building.Target._fields)

    targets = [target, *(target._replace(**other) for other in others)]  # type: ignore[arg-type]
    keys = {building.recorder_key(target, tmp_path) for target in targets}
    source.write_text("2")
    keys.add(building.recorder_key(target, tmp_path))
    (tmp_path / building.RECORDER[-1] / "b.h").write_text("")
    keys.add(building.recorder_key(target, tmp_path))
    assert len(keys) == len(targets) + 2

    (tmp_path / "b.h").write_text("of the reading half")
    assert building.recorder_key(target, tmp_path) in keys
