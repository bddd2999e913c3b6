"""How modules are compiled: only what has changed, several at once, and every failure in one sentence."""

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
from pytorch_alloctrace.recording.building import BuildError, Module

CXX = os.environ.get("CXX", "c++")


class Project:
    """Two small sources that share a header, in a folder whose name has a space."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "with space"
        self.folder.mkdir()
        self.output = folder / "out" / "module.so"
        self.options: list[str] = []
        self.made_for = "this"
        self.write("common.h", "int common();")
        self.write("one.cpp", '#include "common.h"\nint one() { return common(); }')
        self.write("two.cpp", "int two() { return 2; }")

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.write_text(text + "\n")
        # A file that was edited in the very tick of the clock in which its compiler begins is compiled again the next
        # time, for nobody knows what the compiler read. Here each is edited a moment before.
        edited = path.stat().st_mtime_ns - 1_000_000
        os.utime(path, ns=(edited, edited))

    def build(self) -> list[str]:
        """Build; return the names of the files that were compiled."""
        said: list[str] = []
        sources = sorted(self.folder.glob("*.cpp"))
        module = Module(sources, ["-fPIC", *self.options], ["-shared"], self.made_for)
        building.build(module, self.output, self.folder.parent / "objects", said.append)
        return sorted(line.split("with space/")[1].split("'")[0] for line in said if " -c " in line)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def test_only_what_has_changed_is_compiled(project: Project) -> None:
    assert project.build() == ["one.cpp", "two.cpp"] and project.output.exists()
    made = project.output.stat().st_mtime_ns
    assert project.build() == [] and project.output.stat().st_mtime_ns == made
    project.write("common.h", "int common(); // edited")
    assert project.build() == ["one.cpp"] and project.output.stat().st_mtime_ns > made
    project.write("three.cpp", "int three() { return 3; }")
    assert project.build() == ["three.cpp"]
    project.options = ["-O1"]
    assert project.build() == ["one.cpp", "three.cpp", "two.cpp"]
    project.made_for = "another torch"
    assert project.build() == ["one.cpp", "three.cpp", "two.cpp"]
    project.output.unlink()
    assert project.build() == [] and project.output.exists()
    symbols = subprocess.run(["nm", "-D", project.output], capture_output=True, text=True, check=True).stdout
    assert all(name in symbols for name in ("one", "two", "three"))
    # A source that is gone is in the module no longer.
    (project.folder / "two.cpp").unlink()
    assert project.build() == []
    symbols = subprocess.run(["nm", "-D", project.output], capture_output=True, text=True, check=True).stdout
    assert "three" in symbols and "two" not in symbols


def test_compile_error_is_one_sentence_and_leaves_the_module(project: Project) -> None:
    project.build()
    before = project.output.read_bytes()
    project.write("two.cpp", "int two() { return missing; }")
    for _ in range(2):  # not only the first time
        with pytest.raises(BuildError, match=r"two\.cpp:1:\d+: error: .missing. was not declared") as failure:
            project.build()
        assert "\n" not in str(failure.value)
    assert project.output.read_bytes() == before and list(project.output.parent.iterdir()) == [project.output]


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_missing_old_or_killed_compiler_is_named_with_the_command(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusal() -> str:
        with pytest.raises(BuildError) as refused:
            project.build()
        return str(refused.value)

    monkeypatch.setenv("CXX", "no-such-compiler -O9")
    assert refusal().startswith("there is no compiler CXX=no-such-compiler -O9: run `unset CXX`")
    monkeypatch.setenv("CXX", script(tmp_path / "old", 'case $1 in -dumpversion) echo 9;; *) echo "g++ 9.4.0";; esac'))
    assert f"is GCC 9, and GCC {building.MINIMUM_GCC} or newer is needed" in refusal()
    said = "c++: fatal error: Killed signal terminated program"
    killed = f'case $1 in -dumpversion) echo 12;; *) echo "{said}" >&2; exit 1;; esac'
    monkeypatch.setenv("CXX", script(tmp_path / "killed", killed))
    assert "for want of memory: try again with `MAX_JOBS=1`" in refusal()
    monkeypatch.delenv("CXX")
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert refusal() == "there is no C++ compiler: run `apt-get install g++`"
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path / "empty"))
    here = f"python3.{sys.version_info[1]}"
    assert refusal() == f"there is no C++ compiler: run `apt-get install g++ {here}-dev`"
    script(tmp_path / "empty" / "dnf", "")
    assert refusal() == "there is no C++ compiler: run `dnf install gcc-c++ python3-devel`"
    script(tmp_path / "empty" / "c++", "echo 12")
    assert refusal().startswith("Python's headers are missing (") and "`dnf install python3-devel`" in refusal()


def test_number_of_compilers_is_limited_by_max_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAX_JOBS", "3")
    assert building.jobs() == 3
    for senseless in ("", "0", "many"):
        monkeypatch.setenv("MAX_JOBS", senseless)
        assert 1 <= building.jobs() <= building.MOST_JOBS


@pytest.mark.parametrize("linker_works", [True, False])
def test_recorder_is_compiled_as_a_whole_only_where_the_linker_can(
    linker_works: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cannot_link = 'case "$*" in *-flto*-shared*) echo "ld: error: could not run lto-wrapper" >&2; exit 1;; esac'
    if not linker_works:
        monkeypatch.setenv("CXX", script(tmp_path / "c++", f'{cannot_link}\nexec {CXX} "$@"'))
    (tmp_path / "torch" / "include" / "torch" / "csrc").mkdir(parents=True)
    target = building.Target("2.11.0", "", None, True, "3.11.7", "cpython-311", "")
    module = building.recorder(ROOT / "csrc", target, tmp_path / "torch", [])
    for options in (module.options, module.link_options):
        assert ("-flto=auto" in options) == linker_works


def test_missing_headers_of_cuda_are_named_with_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch" / "include" / "torch" / "csrc").mkdir(parents=True)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.setattr(Path, "is_dir", without_toolkit(Path.is_dir))
    for cuda, package in (("13.0", "nvidia-cuda-runtime==13.0.*"), ("12.8", "nvidia-cuda-runtime-cu12==12.8.*")):
        target = building.Target("2.11.0", "", cuda, True, "3.11.7", "cpython-311", "")
        with pytest.raises(BuildError) as refused:
            building.recorder(ROOT / "csrc", target, tmp_path / "torch", [str(tmp_path)])
        assert f"the headers of CUDA {cuda} are missing: run `pip install {package}`" in str(refused.value)
    # Without CUDA none are needed, nor any source that includes them.
    module = building.recorder(ROOT / "csrc", target._replace(cuda=None), tmp_path / "torch", [str(tmp_path)])
    assert not any("torch/cuda/" in str(source) for source in module.sources)
    assert any("torch/no_cuda/" in str(source) for source in module.sources)
    with pytest.raises(BuildError, match=r"has no headers to compile the recorder with"):
        building.recorder(ROOT / "csrc", target, tmp_path, [])


@pytest.mark.skipif(torch.version.cuda is None, reason="this torch is without CUDA")
def test_headers_of_torchs_packages_suffice_without_a_toolkit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile library_blocks.cpp, which includes the most headers of CUDA."""
    monkeypatch.setattr(Path, "is_dir", without_toolkit(Path.is_dir))
    module = building.recorder(ROOT / "csrc", building.target_of(torch), Path(torch.__file__).parent, sys.path)
    assert not [option for option in module.options if "/usr/local/cuda" in option]
    (source,) = [path for path in module.sources if path.name == "library_blocks.cpp"]
    command = [CXX, *module.options, "-fsyntax-only", source]
    compiled = subprocess.run(command, capture_output=True, text=True, check=False)
    assert compiled.returncode == 0, compiled.stderr


def without_toolkit(is_dir: Callable[[Path], bool]) -> Callable[[Path], bool]:
    return lambda path: not str(path).startswith("/usr/local/cuda") and is_dir(path)


def test_key_changes_with_target_and_sources(tmp_path: Path) -> None:
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
    keys = {building.recorder_key(each, tmp_path) for each in targets}
    source.write_text("2")
    keys.add(building.recorder_key(target, tmp_path))
    (tmp_path / building.RECORDER[-1] / "b.h").write_text("")
    keys.add(building.recorder_key(target, tmp_path))
    assert len(keys) == len(targets) + 2
    (tmp_path / "b.h").write_text("of the reading half")
    assert building.recorder_key(target, tmp_path) in keys
