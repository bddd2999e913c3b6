"""Selection of the recorder: the package's if it fits, else one from the cache, else an error with the reason.

The recorder of this checkout replaces one built on first use; the error of a missing compiler shows that a build began.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from running import ROOT
from test_building import write_script

RunProgram = Callable[..., Any]

MISMATCHED_PACKAGE = """
import json, os, pathlib, shutil, sys
import torch
import pytorch_alloctrace as alloctrace
from pytorch_alloctrace import _build_info
from pytorch_alloctrace.recording import building, loading
target = building.target_of(torch)
key = building.recorder_key(target, loading._find_sources())
name = loading._file_name(target)
in_package = pathlib.Path(alloctrace.__file__).parent / name
def put_into(cache):
    (cache / key).mkdir(parents=True)
    for folder in (cache, cache / key):
        folder.chmod(0o755)
    shutil.copy(in_package, cache / key)
    (cache / key / name).chmod(0o644)
    building.seal(cache / key / name)
    building.seal_of(cache / key / name).chmod(0o644)
    return cache / key / name
def refusal(**options):
    try:
        alloctrace.enable("never.alloctrace", **options)
    except alloctrace.RecorderUnavailableError as error:
        assert loading.NAME not in sys.modules and not os.path.exists("never.alloctrace")
        return str(error)
    raise AssertionError("recorded")
def give_away(path):
    if os.geteuid() == 0:
        return os.chown(path, 12345, 12345)
    real_stat, path = os.stat, os.path.abspath(path)
    def stat(asked, *arguments, **named):
        status = real_stat(asked, *arguments, **named)
        is_foreign = not isinstance(asked, int) and os.path.abspath(asked) == path
        return os.stat_result((*status[:4], 12345, *status[5:])) if is_foreign else status
    os.stat = stat
built_for = dict(_build_info.RECORDER_FOR)
assert built_for == target._asdict()
_build_info.RECORDER_FOR = built_for | {"torch": "2.10.0+cu130"}
"""


@pytest.fixture
def run(run_program: Callable[..., Any], tmp_path: Path) -> RunProgram:
    """Return a function that runs a program with a recorder for another torch in its package and without a compiler."""
    (tmp_path / "temporary").mkdir()
    environment = {
        "CXX": "no-such-compiler",
        "ALLOCTRACE_CACHE": str(tmp_path / "cache"),
        "TMPDIR": str(tmp_path / "temporary"),
    }

    def run(source: str, **changed: str) -> Any:
        return run_program(MISMATCHED_PACKAGE + source, **{**environment, **changed})

    return run


def test_recorder_for_other_torch_is_not_loaded(run: RunProgram) -> None:
    process = run("""
others = {"torch": "2.4.0", "torch_commit": "0", "cuda": "11.8", "cxx11_abi": False, "python": "3.11.0",
          "abi": "cpython-39", "libc": "glibc 2.17"}
for field, value in others.items():
    _build_info.RECORDER_FOR = built_for | {field: value}
    print(refusal())
_build_info.RECORDER_FOR = None
print(refusal())
_build_info.RECORDER_FOR = built_for
alloctrace.enable("now.alloctrace")
alloctrace.disable()
""")
    sentence = "recording is not possible: there is no compiler CXX=no-such-compiler: run `unset CXX`"
    lines = process.stdout.splitlines()
    assert len(lines) == 8 and all(line.startswith(sentence) for line in lines), process.stdout

    # stderr has only one line for each attempt, and no traceback of the process that builds.
    attempts = process.stderr.splitlines()
    assert len(attempts) == 8 and all(line.endswith("... failed") for line in attempts), process.stderr


def test_recorder_in_cache_is_used(run: RunProgram, tmp_path: Path) -> None:
    process = run("""
cached = put_into(next(loading._cache_folders()))
with alloctrace.enable("a.alloctrace") as session:
    kept = torch.ones(54321)
assert 4 * 54321 in list(session.load().live("end")["requested_bytes"])
assert loading.load_recorder().__file__ == str(cached), loading.load_recorder()
for name in [name for name in sys.modules if name.startswith("pytorch_alloctrace")]:
    del sys.modules[name]  # as a test-runner or a notebook does that imports a package again
import pytorch_alloctrace as again
again.enable("b.alloctrace")
again.disable()
""")
    assert process.stderr == ""

    # Nothing was built.
    (name,) = [path.name for path in (ROOT / "pytorch_alloctrace").glob("_record.*.so")]
    assert sorted(path.name for path in tmp_path.glob("cache/*/*/*")) == [name, f"{name}.sha256"]


def test_cache_is_in_writable_folder(run: RunProgram) -> None:
    run("""
here = pathlib.Path.cwd()
def folders(**environment):
    for variable in ("ALLOCTRACE_CACHE", "XDG_CACHE_HOME", "HOME"):
        os.environ.pop(variable, None)
    os.environ.update(environment)
    return [str(folder) for folder in loading._cache_folders()]
private = str(here / "temporary" / f"pytorch_alloctrace-{os.getuid()}")
assert folders(ALLOCTRACE_CACHE="mine", HOME="/h") == [str(here / "mine/pytorch_alloctrace"), private]
assert folders(XDG_CACHE_HOME="/x", HOME="/h") == ["/x/pytorch_alloctrace", private]
assert folders(XDG_CACHE_HOME="relative", HOME="/h") == ["/h/.cache/pytorch_alloctrace", private]
assert folders(HOME="/h") == ["/h/.cache/pytorch_alloctrace", private]
# A folder that cannot be created: the private folder is used instead.
os.environ["ALLOCTRACE_CACHE"] = "/proc/none"
assert loading._writable_folder(key) == pathlib.Path(private, key)
shutil.rmtree(private)
assert put_into(next(iter([pathlib.Path(folder) for folder in folders(ALLOCTRACE_CACHE="/proc/none")][1:])))
assert loading._find_cached(key, target) == pathlib.Path(private, key, name)
# No writable folder: the error names the next command.
shutil.rmtree(private)
pathlib.Path(private).write_text("in the way")
assert "set ALLOCTRACE_CACHE to a folder of yours" in refusal()
""")


def test_shared_cache_folder_is_made_private_and_recorder_rebuilt(run: RunProgram) -> None:
    run("""
for level in (1, 0):
    os.environ["ALLOCTRACE_CACHE"] = os.path.abspath(f"cache{level}")
    cached = put_into(next(loading._cache_folders()))
    opened = cached.parents[level]
    cached.chmod(0o664)
    opened.chmod(0o775)
    assert "no-such-compiler" in refusal()
    assert not cached.exists() and opened.stat().st_mode & 0o777 == 0o700, opened
""")


def test_cache_folders_are_private_and_others_unchanged(run: RunProgram) -> None:
    run("""
# The modes of a shared folder that its owner chose, and of a folder with write access for others that is linked in
# place of the cache, do not change.
shared, linked, other = pathlib.Path("shared"), pathlib.Path("linked"), pathlib.Path("other")
for folder in (shared, linked, other):
    folder.mkdir()
shared.chmod(0o775)
other.chmod(0o1777)
(linked / "pytorch_alloctrace").symlink_to(other.absolute())
for cache in (shared, linked):
    os.environ["ALLOCTRACE_CACHE"] = str(cache)
    refusal()
assert shared.stat().st_mode & 0o777 == 0o775 and (shared / "pytorch_alloctrace").stat().st_mode & 0o777 == 0o700
assert other.stat().st_mode & 0o7777 == 0o1777 and not list(other.iterdir())

os.umask(0)
mine = pathlib.Path("mine")
mine.mkdir(mode=0o700)
os.environ["ALLOCTRACE_CACHE"] = "mine/a/b"
folder = loading._writable_folder(key)
assert folder == pathlib.Path.cwd() / "mine/a/b/pytorch_alloctrace" / key
made = [path for path in (folder, *folder.parents) if path.is_relative_to(mine.absolute())]
assert {path.stat().st_mode & 0o777 for path in made} == {0o700}

# A lock that is a link is neither followed nor truncated.
pathlib.Path("precious").write_text("precious")
(folder / "lock").symlink_to(pathlib.Path("precious").absolute())
assert "symbolic links" in refusal() and pathlib.Path("precious").read_text() == "precious"

home = pathlib.Path("home")
home.mkdir()
give_away(home)
os.environ["ALLOCTRACE_CACHE"] = "home/.cache"
assert loading._writable_folder(key).parent == pathlib.Path(f"temporary/pytorch_alloctrace-{os.geteuid()}").absolute()
assert not list(home.iterdir())
""")


def test_built_files_are_private_with_umask_0(run: RunProgram, tmp_path: Path) -> None:
    """Build with a compiler whose output is not a module."""
    version = 'case "$1" in -dumpversion | --version) echo 13; exit ;; esac'
    output = 'while [ $# -gt 1 ]; do [ "$1" = -o ] && echo made > "$2"; shift; done'
    compiler = write_script(tmp_path / "compiler", f"{version}\n{output}")
    process = run("os.umask(0)\nprint(refusal())", CXX=compiler)
    assert "the recorder was built but cannot be loaded" in process.stdout, process.stdout + process.stderr

    modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "cache").rglob("*") if path.is_file()}
    assert modes == {0o600}


UNTRUSTED = {
    "cache of another user": "give_away(cache)",
    "folder of another user": "give_away(cached.parent)",
    "file of another user": "give_away(cached)",
    "seal of another user": "give_away(building.seal_of(cached))",
    "file that others can write": "cached.chmod(0o666)",
    "seal that the group can write": "building.seal_of(cached).chmod(0o664)",
    "linked file": "cached.rename(cache / 'there'), cached.symlink_to(cache / 'there')",
}
CORRUPTIONS = {
    # The loader maps the sizes in the headers, and dies of SIGBUS beyond the end of the file.
    "cut short": "os.truncate(cached, cached.stat().st_size // 4096 // 2 * 4096)",
    "a byte of the code": "with cached.open('r+b') as file: file.seek(200_000), file.write(b'?!')",
    "sealed by nobody": "cached.with_name(cached.name + '.sha256').unlink()",
    "an empty seal": "cached.with_name(cached.name + '.sha256').write_bytes(b'')",
    "from another machine": "cached.write_bytes(b'neither a module nor empty'), building.seal(cached)",
}


def test_corrupt_or_untrusted_recorder_is_rebuilt(run: RunProgram) -> None:
    process = run(f"""
for reason, action in {UNTRUSTED | CORRUPTIONS!r}.items():
    os.environ["ALLOCTRACE_CACHE"] = os.path.abspath(reason)
    cache = next(loading._cache_folders())
    cached = put_into(cache)
    assert loading._find_cached(key, target) == cached, reason
    exec(action)
    assert "no-such-compiler" in refusal(), reason
    assert reason != "from another machine" or not cached.exists()
# Another process has built the recorder while this one waited.
shutil.copy(in_package, cached)
building.seal(cached)
alloctrace.enable("now.alloctrace")
assert loading.load_recorder().__file__ == str(cached)
alloctrace.disable()
""")
    count = len(UNTRUSTED) + len(CORRUPTIONS)

    assert process.stderr.count("building the recorder") == count == len(process.stderr.splitlines())


def test_enable_raises_for_unsupported_torch_or_platform(run: RunProgram) -> None:
    process = run("""
torch.__version__ = "2.8.1+cu126"
print(refusal())
sys.modules["torch"] = None
print(refusal())
sys.platform = "darwin"
print(refusal())
""")
    old, missing, other_platform = process.stdout.splitlines()

    assert "torch 2.9 or newer, and this is 2.8.1+cu126: run `pip install --upgrade 'torch>=2.9'`" in old
    assert "run `pip install 'torch>=2.9'` (reading traces works without it)" in missing
    assert "recording needs Linux, and this is darwin" in other_platform
    assert "`python -m pytorch_alloctrace TRACE`" in other_platform
    assert process.stderr == ""


def test_terminal_shows_progress_of_build(run: RunProgram, tmp_path: Path) -> None:
    process = run(
        """
import pty
terminal, stderr = pty.openpty()
sys.stderr = open(stderr, "w")
refusal()
shown = b""
while not shown.endswith(b"failed\\r\\n"):
    shown += os.read(terminal, 10_000)
print(shown)
""",
        CXX=write_script(tmp_path / "compiler", "exit 1"),
        MAX_JOBS="2",
    )
    steps = r"\\r\\n  compiling 1 of \d\d \.\.\.(\\r  compiling 2 of \d\d \.\.\.)? failed\\r\\n"

    assert re.fullmatch(rf"b'pytorch_alloctrace: building [^\\]* \.\.\.{steps}'\n", process.stdout), process.stdout


def test_build_is_isolated_from_program(run: RunProgram, tmp_path: Path) -> None:
    """Build in a program with preloaded libraries, modules that hide the standard library's, and a closed stderr."""
    variables, descriptors = tmp_path / "seen", tmp_path / "files"
    commands = f"env > {variables}; pwd >> {variables}\nls -l /proc/self/fd/ > {descriptors}\nexit 1"
    compiler = write_script(tmp_path / "compiler", commands)
    (tmp_path / "modules").mkdir()
    for name in ("json", "sitecustomize", "subprocess", "concurrent"):
        (tmp_path / "modules" / f"{name}.py").write_text("raise SystemExit('a module of the program')\n")
    process = run(
        """
import signal
os.environ["PYTHONPATH"] = os.path.abspath("modules")
os.environ["PYTHONHOME"] = "/nowhere"
os.environ["LD_PRELOAD"] = "/nowhere/libpreloaded.so"
os.environ["LD_LIBRARY_PATH"] = "/kept"
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
secret = open("secret", "w")
os.set_inheritable(secret.fileno(), True)
sys.stderr.close()
print(refusal())
assert not torch.cuda.is_initialized()
""",
        CXX=compiler,
    )
    assert "recording is not possible: the recorder cannot be compiled for torch" in process.stdout, process.stderr

    environment = variables.read_text()
    assert "LD_LIBRARY_PATH=/kept" in environment
    assert environment.splitlines()[-1].startswith(str(tmp_path / "temporary" / "alloctrace-build-"))
    assert not [line for line in environment.splitlines() if line.startswith(("PYTHON", "LD_PRELOAD", "ALLOCTRACE"))]
    assert "secret" not in descriptors.read_text()

    (log,) = tmp_path.glob("cache/*/*/build.log")
    assert str(log) in process.stdout and compiler in log.read_text()
    assert os.listdir(tmp_path / "temporary") == []  # all objects were deleted
