"""Programs whose stacks are compared with the traceback module's, for Python 3.10 and later, without torch.

`frame_walk_programs.py PROBE_FOLDER SCENARIO MODE SEED` prints the number of stacks and the first differences as JSON.
"""

from __future__ import annotations

import functools
import gc
import importlib
import json
import os
import random
import signal
import sys
import threading
import traceback
import weakref
from collections.abc import Callable
from typing import Any

from frame_walk_checker import Checker, Probe
from frame_walk_constructs import CONSTRUCTS
from frame_walk_resumptions import resumptions
from pending_call_programs import pending_calls

Program = list[tuple[str, int]]


def run_program(program: Program, leaf: Callable[[], None]) -> None:
    """Nest the constructs of a program, outermost first, around the leaf."""
    if not program:
        return leaf()
    construct, number = program[0]
    CONSTRUCTS[construct](lambda: run_program(program[1:], leaf), number)


def check_program(checker: Checker, program: Program) -> None:
    checker.budget = 24  # constructs that call twice, nested, would compare thousands of times
    before = checker.compared, len(checker.differences)
    run_program(program, checker.check)
    checker.expect(checker.compared > before[0], "the program compared nothing")
    if len(checker.differences) > before[1]:
        checker.differences[before[1]] += f" in {program}"


def each_construct(checker: Checker, seed: int) -> None:
    """Check every construct alone and under every other."""
    names = sorted(CONSTRUCTS)
    for outer in names:
        for number in range(3):
            check_program(checker, [(outer, number)])
        for index, inner in enumerate(names):
            check_program(checker, [(outer, seed + index), (inner, index)])


def random_programs(checker: Checker, seed: int) -> None:
    generator = random.Random(seed)
    names = sorted(CONSTRUCTS)
    for _ in range(250):
        length = generator.randrange(9)
        check_program(checker, [(generator.choice(names), generator.randrange(1 << 16)) for _ in range(length)])


def reused_addresses(checker: Checker, seed: int, runs: int = 6000) -> None:
    """Create code objects of the same shape at the addresses of freed ones."""
    generator = random.Random(seed)
    addresses: dict[int, int] = {}
    for index in range(runs):
        name, filename, lines_before, lines_inside = "function", "<reused>", 0, 0
        varied = index % 5  # one property at a time; the others are equal, and the same object or a new one
        if varied in (0, 4):
            name = f"made_{generator.randrange(10**6):06d}"
        if varied in (1, 4):
            filename = f"<reused {generator.randrange(10**6):06d}>"
        if varied in (2, 4):
            lines_before = generator.randrange(50)
        if varied in (3, 4):
            lines_inside = generator.randrange(50)
        new_lines = "\n"
        source = f"{new_lines * lines_before}def {name}(check):\n{new_lines * lines_inside}    check()\n"
        namespace: dict[str, Any] = {}
        exec(compile(source, filename, "exec"), namespace)
        function = namespace[name]
        addresses[id(function.__code__)] = addresses.get(id(function.__code__), 0) + 1
        function(checker.check_fast)
        del function, namespace
        if generator.random() < 0.02:
            gc.collect()
    checker.expect(
        runs - len(addresses) >= runs // 4, f"{len(addresses)} addresses in {runs} runs: hardly any were reused"
    )


def deep_recursion(checker: Checker, seed: int) -> None:
    """Check that stacks have all frames up to 4096, and beyond that the innermost 4096."""

    def descend(depth: int) -> None:
        if depth > 0:
            return descend(depth - 1)
        checker.check_fast()

    def run() -> None:
        limit = sys.getrecursionlimit()
        sys.setrecursionlimit(20000)
        cached, maximum = (254, 255, 256, 257), (4080, 4095, 4096, 4097)
        for depth in (0, 1, 127, 128, *cached, 300, 3000, *maximum, 5000, 9000, 10000, 3000):
            descend(depth)
        sys.setrecursionlimit(limit)

    old_size = threading.stack_size(1 << 29)
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    threading.stack_size(old_size)


def around_cached_depth(checker: Checker, seed: int) -> None:
    """Call and return through two lines of each frame, around the depth up to which a walk is cached for the next."""
    generator = random.Random(seed)
    remaining = 2_000

    def visit() -> None:
        nonlocal remaining
        while remaining > 0:
            remaining -= 1
            deeper = 0.1 if remaining % 400 < 300 else 0.6  # alternately less and more often than returning
            choice = generator.random()
            if choice < deeper:
                if generator.random() < 0.5:
                    visit()
                else:
                    visit()
            elif choice < 0.75:
                checker.check_fast()
            else:
                return

    def begin(depth: int) -> None:
        if depth > 0:
            return begin(depth - 1)
        while remaining > 0:
            visit()

    begin(228)


def threads(checker: Checker, seed: int) -> None:
    """Walk in concurrent threads, and in threads started after others ended."""

    def run_programs(number: int) -> None:
        generator = random.Random(number)
        own_checker = Checker.__new__(Checker)
        own_checker.__dict__.update(checker.__dict__, compared=0, differences=[])
        for _ in range(12):
            program = [(generator.choice(sorted(CONSTRUCTS)), generator.randrange(99)) for _ in range(3)]
            own_checker.budget = 6
            run_program(program, own_checker.check)
        with lock:
            checker.compared += own_checker.compared
            checker.differences += own_checker.differences

    lock = threading.Lock()
    for generation in range(4):
        workers = [threading.Thread(target=run_programs, args=(seed + 8 * generation + index,)) for index in range(6)]
        for thread in workers:
            thread.start()
        for thread in workers:
            thread.join()


def native_thread(checker: Checker, seed: int) -> None:
    """Check that a C++ thread has no stack before and after Python runs on it."""

    def called() -> int:
        checker.budget = 1
        checker.check()
        return checker.walk()

    for _ in range(3):
        before, without_code, during, after = checker.probe.call_on_native_thread(called)
        checker.expect((before, without_code, after) == (0, 0, 0), f"{before}, {without_code}, {after} without Python")
        names = [name for name, *_ in checker.probe.frames(during)]
        checker.expect(names == ["called"], f"{names} on a native thread")


def gil_held_elsewhere(checker: Checker, seed: int) -> None:
    """Check that a walk ends while another thread holds the GIL."""
    results: list[bool] = []
    for _ in range(5):
        holder = threading.Thread(target=lambda: results.append(checker.probe.hold_gil()))
        holder.start()
        stack, frame = checker.probe.stack_while_gil_is_held(), sys._getframe()
        holder.join()
        names = [name for name, *_ in checker.probe.frames(stack)]
        expected = [entry.f_code.co_name for entry, _ in traceback.walk_stack(frame)][::-1]
        checker.expect(names == expected, f"{names} while the GIL is held elsewhere")
    checker.expect(results == [True] * 5, f"{results}: the walk waited for the GIL")


def ids(checker: Checker, seed: int) -> None:
    """Check that equal stacks have one id, and that a recorded stack defines nothing."""
    first = [checker.walk() for _ in range(5)]
    checker.expect(len(set(first)) == 1 and first[0] != 0, f"{first} for one stack")
    counts = []
    for _ in range(3):
        stacks = [checker.walk() for _ in range(2)]
        counts.append((stacks[0], checker.probe.frame_count()))
    checker.expect(len(set(counts)) == 1, f"{counts}: recorded stacks were defined again")
    checker.expect(len({checker.walk(), checker.walk()}) == 2, "two calls on one line are one stack")


def sessions(checker: Checker, seed: int, mode: str) -> None:
    """Check that a new session clears a thread's cached walk."""
    for _ in range(50):
        checker.probe.start(mode)
        checker.check_fast()
        checker.check_fast()


def deaths(checker: Checker, seed: int) -> None:
    """Check that only the deallocation of a code object in a recorded stack clears the threads' cached walks."""
    probe = checker.probe

    def generations(call: bool) -> int:
        namespace: dict[str, Any] = {}
        exec("def function(walk):\n    return walk()\n", namespace)
        before = probe.generation()
        if call:
            namespace["function"](checker.walk)
        namespace.clear()
        return probe.generation() - before

    checker.expect(
        generations(call=False) == 0, "the deallocation of an unrecorded code object cleared the cached walks"
    )
    checker.expect(generations(call=True) == 1, "the deallocation of a recorded code object cleared no cached walk")


def run_in_child(action: Callable[[], None]) -> int:
    """Return the status of a forked child, which is killed if it does not end within a minute."""
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        try:
            action()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitpid(child, 0)[1]


def fork(checker: Checker, seed: int, mode: str) -> None:
    """Deallocate code objects in a forked child, and record the child in a new session."""
    checker.check_fast()
    reading, writing = os.pipe()

    def check_in_child() -> None:
        exec("def function(walk):\n    return walk()\n", {})
        gc.collect()
        in_child = Checker(checker.probe, mode)
        reused_addresses(in_child, seed, 500)
        os.write(writing, json.dumps(in_child.differences[:1])[:4000].encode())

    status = run_in_child(check_in_child)
    os.close(writing)
    differences = os.read(reading, 4096).decode()
    os.close(reading)
    checker.expect(status == 0 and differences == "[]", f"the child's status {status}, differences {differences}")


def fork_while_walking(checker: Checker, seed: int) -> None:
    """Fork while another thread holds a lock, which stays locked in the child, and deallocate code objects there."""
    is_over = False

    def walk() -> None:
        while not is_over:
            checker.probe.walk_anew(2000)

    walkers = [threading.Thread(target=walk) for _ in range(2)]
    for thread in walkers:
        thread.start()
    for _ in range(25):
        status = run_in_child(lambda: exec("def function(walk):\n    return walk()\n", {}))
        checker.expect(status == 0, f"status {status} of a forked child: it waited forever if it was killed")
        if status:
            break
    is_over = True
    for thread in walkers:
        thread.join()


def exit_while_threads_walk(checker: Checker, seed: int) -> None:
    """End the interpreter while daemon threads walk; the test checks the exit status."""
    started = threading.Barrier(5)

    def walk_for_ever() -> None:
        started.wait()
        while True:
            checker.walk()

    for _ in range(4):
        threading.Thread(target=walk_for_ever, daemon=True).start()
    started.wait()
    checker.expect(checker.walk() != 0, "no stack")


class Module:
    """Called as torch's modules are."""

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self.forward(*arguments, **named)

    def forward(self, inner: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return inner(*arguments)
        finally:
            del inner, arguments


class ModuleChecker:
    """Comparison of the walker's modules with those of the frames."""

    def __init__(self, checker: Checker) -> None:
        self.checker = checker
        self.named: dict[int, tuple[weakref.ref[Module], int]] = {}  # by id() of a live object: object, module id
        self.used_ids: set[int] = set()  # module ids that objects have or had
        self.code = Module.__call__.__code__

    def check(self) -> None:
        checker = self.checker
        pairs = [frame[4:] for frame in checker.probe.frames(checker.walk())]
        called = self.called_modules()
        checker.compared += 1
        checker.expect([module != 0 for module, _ in pairs] == [module is not None for module in called], f"{pairs}")
        calls = checker.probe.calls_now()
        checker.expect([id(module) for module in calls] == [id(module) for module in called if module], "calls_now")
        for (identifier, name), module in zip(pairs, called, strict=False):
            if module is None:
                continue
            checker.expect(name == type(module).__name__, f"a {type(module).__name__} is called {name}")
            entry = self.named.get(id(module))
            checker.expect(entry is None or entry[1] == identifier, f"{identifier}, not {entry and entry[1]}")
            checker.expect(entry is not None or identifier not in self.used_ids, f"{identifier} is another object's")
        # Like the recorder, while the modules are being called: some get a permanent id.
        living = {id(module): module for module in calls}
        named = checker.probe.settle(lambda identifier: identifier % 7 > 4)
        for address, identifier in named.items():
            checker.expect(address in living and address not in self.named, f"{identifier} is not called")
            reference = weakref.ref(living[address], lambda dead, address=address: self.forget(address))
            self.named[address] = (reference, identifier)
            self.used_ids.add(identifier)

    def called_modules(self) -> list[Module | None]:
        """Return the modules that the caller's frames call, outermost first."""
        # No variable refers to a frame, which would keep it and its modules alive until a garbage collection.
        return [
            frame.f_locals["self"] if frame.f_code is self.code else None
            for frame, _ in traceback.walk_stack(sys._getframe(1))
        ][::-1]

    def forget(self, address: int) -> None:
        del self.named[address]
        self.checker.probe.forget(address)


def modules(checker: Checker, seed: int) -> None:
    """Call modules among all constructs: each live object has its own id, even at the address of a freed one."""
    generator = random.Random(seed)
    watcher = ModuleChecker(checker)
    checker.expect(checker.probe.watch_calls(watcher.code), "calls of modules cannot be watched")
    names = sorted(CONSTRUCTS)
    classes: list[type[Module]] = [Module, Module]

    def make() -> Module:
        return generator.choice(classes)()

    living = [make() for _ in range(8)]

    def nest(depth: int) -> None:
        if depth == 0:
            for _ in range(generator.randrange(1, 4)):
                watcher.check()
            return
        kind = generator.randrange(4)
        if kind == 0:
            construct = generator.choice(names)
            CONSTRUCTS[construct](lambda: nest(depth - 1), generator.randrange(99))
            return
        # A module that stays alive, one held by its caller, or one held only by the call.
        module = generator.choice(living) if kind == 1 else make()
        if kind == 2:
            module(nest, depth - 1)
        else:
            Module.__call__(make(), nest, depth - 1)

    addresses: list[int] = []
    for number in range(700):
        if number % 20 == 0:  # the walker soon skips a class whose modules die without an id
            classes = [type(f"Module{number}", (Module,), {}), type(f"Other{number}", (Module,), {})]
        nest(generator.randrange(6))
        # Repeat the calls with other modules at the same addresses.
        for _ in range(generator.randrange(6)):
            fresh = make()
            addresses.append(id(fresh))
            fresh(nest, 0)
            del fresh
        # Repeat the calls with the same modules, which may get an id between two calls on one line.
        for module in living * 2:
            module(nest, 0)
            module(nest, 0)
        if generator.random() < 0.05:
            living[generator.randrange(len(living))] = make()
            living[generator.randrange(len(living))] = make()
        if generator.random() < 0.02:
            gc.collect()
    reused = len(addresses) - len(set(addresses))
    checker.expect(reused > len(addresses) // 4, f"of {len(addresses)} addresses {reused} were reused")
    checker.expect(checker.compared > 1000 and len(watcher.used_ids) > 100, f"{len(watcher.used_ids)} module ids")


def module_in_cell(checker: Checker, seed: int) -> None:
    """Check that a first argument in a cell, shared with an inner function, is not read."""

    def call(self: object, inner: Callable[[], Any]) -> Any:
        return (lambda: self and inner())()

    checker.expect(not checker.probe.watch_calls(call.__code__), "a cell was taken for a module")
    checker.expect(not checker.probe.watch_calls((lambda *modules: 0).__code__), "a tuple was taken for a module")
    call(checker, checker.check_fast)


def deleted_module(checker: Checker, seed: int) -> None:
    """Check that a call whose frame has deleted its module has no module."""

    def call(self: object, deletes: bool) -> list[int]:
        if deletes:
            del self
        return [frame[4] for frame in checker.probe.frames(checker.walk())]

    checker.expect(checker.probe.watch_calls(call.__code__), "calls of modules cannot be watched")
    for deletes in (True, False, True, True, False, False):
        modules_found = call(checker, deletes)
        checker.expect(any(modules_found) != deletes, f"{modules_found}, though {deletes=}")


class WalkingAtExit:
    """Object whose finalizer walks during the interpreter's shutdown, and prints the result."""

    def __init__(self, checker: Checker) -> None:
        self.checker = checker
        self.write = functools.partial(os.write, 1)

    def __del__(self) -> None:
        stack = self.checker.walk()
        difference = "" if stack == 0 else '"a stack while the interpreter shuts down"'
        self.write(f'{{"compared": 2, "differences": [{difference}]}}\n'.encode())


def walk_at_exit(checker: Checker, seed: int) -> None:
    """Check that a finalizer has no stack while the interpreter shuts down."""
    global walking_at_exit
    checker.expect(checker.walk() != 0, "no stack")
    walking_at_exit = WalkingAtExit(checker)


walking_at_exit: object = None


SCENARIOS: dict[str, Callable[..., None]] = {
    function.__name__: function
    for function in (
        *(each_construct, random_programs, reused_addresses, deep_recursion, around_cached_depth, threads),
        *(native_thread, gil_held_elsewhere, ids, sessions, deaths, fork, fork_while_walking),
        *(exit_while_threads_walk, walk_at_exit, modules, module_in_cell, deleted_module),
        *(resumptions, pending_calls),
    )
}


def main() -> None:
    folder, scenario, mode, seed = sys.argv[1:]
    sys.path.insert(0, folder)
    probe: Probe = importlib.import_module("frame_walk_probe")
    checker = Checker(probe, mode)
    arguments = (mode,) if scenario in ("sessions", "fork") else ()
    SCENARIOS[scenario](checker, int(seed), *arguments)
    print(json.dumps({"compared": checker.compared, "differences": checker.differences[:3]}), flush=True)


if __name__ == "__main__":
    main()
