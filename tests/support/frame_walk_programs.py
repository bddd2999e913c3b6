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
    """Make code objects of the same shape at the addresses of others that died."""
    generator = random.Random(seed)
    addresses: dict[int, int] = {}
    for index in range(runs):
        name, filename, before, inside = "function", "<reused>", 0, 0
        varied = index % 5  # one property at a time, the others the same object or the same text in a new one
        if varied in (0, 4):
            name = f"made_{generator.randrange(10**6):06d}"
        if varied in (1, 4):
            filename = f"<reused {generator.randrange(10**6):06d}>"
        if varied in (2, 4):
            before = generator.randrange(50)
        if varied in (3, 4):
            inside = generator.randrange(50)
        new_lines = "\n"
        source = f"{new_lines * before}def {name}(check):\n{new_lines * inside}    check()\n"
        namespace: dict[str, Any] = {}
        exec(compile(source, filename, "exec"), namespace)
        function = namespace[name]
        addresses[id(function.__code__)] = addresses.get(id(function.__code__), 0) + 1
        function(checker.check_fast)
        del function, namespace
        if generator.random() < 0.02:
            gc.collect()
    checker.expect(
        runs - len(addresses) >= runs // 4, f"{len(addresses)} addresses in {runs} runs: hardly any came back"
    )


def deep_recursion(checker: Checker, seed: int) -> None:
    """Check that all frames up to 4096 are there, and beyond that the innermost 4096."""

    def descend(depth: int) -> None:
        if depth > 0:
            return descend(depth - 1)
        checker.check_fast()

    def run() -> None:
        limit = sys.getrecursionlimit()
        sys.setrecursionlimit(20000)
        kept, most = (254, 255, 256, 257), (4080, 4095, 4096, 4097)
        for depth in (0, 1, 127, 128, *kept, 300, 3000, *most, 5000, 9000, 10000, 3000):
            descend(depth)
        sys.setrecursionlimit(limit)

    old_size = threading.stack_size(1 << 29)
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    threading.stack_size(old_size)


def around_the_depth_that_is_kept(checker: Checker, seed: int) -> None:
    """Call and return through two lines of each frame, around the depth up to which a walk is kept for the next."""
    generator = random.Random(seed)
    left = 2_000

    def visit() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            deeper = 0.1 if left % 400 < 300 else 0.6  # less often than back for a while, then more often
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
        while left > 0:
            visit()

    begin(228)


def threads(checker: Checker, seed: int) -> None:
    """Walk in several threads at once, and in threads that follow others that ended."""

    def work(number: int) -> None:
        generator = random.Random(number)
        own = Checker.__new__(Checker)
        own.__dict__.update(checker.__dict__, compared=0, differences=[])
        for _ in range(12):
            program = [(generator.choice(sorted(CONSTRUCTS)), generator.randrange(99)) for _ in range(3)]
            own.budget = 6
            run_program(program, own.check)
        with lock:
            checker.compared += own.compared
            checker.differences += own.differences

    lock = threading.Lock()
    for generation in range(4):
        together = [threading.Thread(target=work, args=(seed + 8 * generation + index,)) for index in range(6)]
        for thread in together:
            thread.start()
        for thread in together:
            thread.join()


def native_thread(checker: Checker, seed: int) -> None:
    """Check that a C++ thread has no stack before and after Python runs on it."""

    def called() -> int:
        checker.budget = 1
        checker.check()
        return checker.walk()

    for _ in range(3):
        before, without_code, inside, after = checker.probe.call_on_native_thread(called)
        checker.expect((before, without_code, after) == (0, 0, 0), f"{before}, {without_code}, {after} without Python")
        names = [name for name, *_ in checker.probe.frames(inside)]
        checker.expect(names == ["called"], f"{names} on a native thread")


def gil_held_elsewhere(checker: Checker, seed: int) -> None:
    """Check that a walk ends while another thread holds the GIL all the time."""
    results: list[bool] = []
    for _ in range(5):
        holder = threading.Thread(target=lambda: results.append(checker.probe.hold_gil()))
        holder.start()
        stack, frame = checker.probe.stack_while_gil_is_held(), sys._getframe()
        holder.join()
        found = [name for name, *_ in checker.probe.frames(stack)]
        expected = [entry.f_code.co_name for entry, _ in traceback.walk_stack(frame)][::-1]
        checker.expect(found == expected, f"{found} while the GIL is held elsewhere")
    checker.expect(results == [True] * 5, f"{results}: the walk waited for the GIL")


def ids(checker: Checker, seed: int) -> None:
    """Check that equal stacks have one id, and that a known stack defines nothing."""
    first = [checker.walk() for _ in range(5)]
    checker.expect(len(set(first)) == 1 and first[0] != 0, f"{first} for one stack")
    counts = []
    for _ in range(3):
        stacks = [checker.walk() for _ in range(2)]
        counts.append((stacks[0], checker.probe.frame_count()))
    checker.expect(len(set(counts)) == 1, f"{counts}: known stacks were defined again")
    checker.expect(len({checker.walk(), checker.walk()}) == 2, "two calls on one line are one stack")


def sessions(checker: Checker, seed: int, mode: str) -> None:
    """Check that a thread forgets at a new session what it kept of the last one."""
    for _ in range(50):
        checker.probe.start(mode)
        checker.check_fast()
        checker.check_fast()


def deaths(checker: Checker, seed: int) -> None:
    """Check that only the death of a code object in a recorded stack makes threads forget their last walk."""
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
        generations(call=False) == 0, "the death of an unknown code object was taken for that of a known one"
    )
    checker.expect(generations(call=True) == 1, "the death of a known code object went unseen")


def run_in_child(action: Callable[[], None]) -> int:
    """Return the status of a forked child, which says that it was killed if it does not end within a minute."""
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
    """Let code objects die in a forked child, and record the child in a new session."""
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
    found = os.read(reading, 4096).decode()
    os.close(reading)
    checker.expect(status == 0 and found == "[]", f"the child's status {status}, differences {found}")


def fork_while_walking(checker: Checker, seed: int) -> None:
    """Fork while another thread holds a lock: it stays locked in the child, where code objects die too."""
    ended = False

    def walk() -> None:
        while not ended:
            checker.probe.walk_anew(2000)

    walking = [threading.Thread(target=walk) for _ in range(2)]
    for thread in walking:
        thread.start()
    for _ in range(25):
        status = run_in_child(lambda: exec("def function(walk):\n    return walk()\n", {}))
        checker.expect(status == 0, f"status {status} of a forked child, which waited for ever if it was killed")
        if status:
            break
    ended = True
    for thread in walking:
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

    def forward(self, inner: Callable[..., Any], *rest: Any) -> Any:
        try:
            return inner(*rest)
        finally:
            del inner, rest


class ModuleAccount:
    """What the walker says of modules, compared with the frames themselves."""

    def __init__(self, checker: Checker) -> None:
        self.checker = checker
        self.named: dict[int, tuple[weakref.ref[Module], int]] = {}  # id of the object: it is alive, its module id
        self.taken: set[int] = set()  # module ids that are, or were, one object's
        self.code = Module.__call__.__code__

    def check(self) -> None:
        checker = self.checker
        found = [frame[4:] for frame in checker.probe.frames(checker.walk())]
        called = self.called()
        checker.compared += 1
        checker.expect([module != 0 for module, _ in found] == [module is not None for module in called], f"{found}")
        now = checker.probe.calls_now()
        checker.expect([id(module) for module in now] == [id(module) for module in called if module], "calls_now")
        for (identifier, name), module in zip(found, called, strict=False):
            if module is None:
                continue
            checker.expect(name == type(module).__name__, f"a {type(module).__name__} is called {name}")
            known = self.named.get(id(module))
            checker.expect(known is None or known[1] == identifier, f"{identifier}, not {known and known[1]}")
            checker.expect(known is not None or identifier not in self.taken, f"{identifier} is another object's")
        # While what was met is being called, as the recorder does it: some get an id for life.
        living = {id(module): module for module in now}
        named = checker.probe.settle(lambda identifier: identifier % 7 > 4)
        for address, identifier in named.items():
            checker.expect(address in living and address not in self.named, f"{identifier} is not called")
            reference = weakref.ref(living[address], lambda dead, address=address: self.forget(address))
            self.named[address] = (reference, identifier)
            self.taken.add(identifier)

    def called(self) -> list[Module | None]:
        """Return the modules that the caller's frames call, outermost first."""
        # Without a variable for a frame, which would keep it, and the modules, until garbage is collected.
        return [
            frame.f_locals["self"] if frame.f_code is self.code else None
            for frame, _ in traceback.walk_stack(sys._getframe(1))
        ][::-1]

    def forget(self, address: int) -> None:
        del self.named[address]
        self.checker.probe.forget(address)


def modules(checker: Checker, seed: int) -> None:
    """Call modules among all constructs: each live object has its own id, whichever others died at its address."""
    generator = random.Random(seed)
    account = ModuleAccount(checker)
    checker.expect(checker.probe.watch_calls(account.code), "calls of modules cannot be watched")
    names = sorted(CONSTRUCTS)
    classes: list[type[Module]] = [Module, Module]

    def make() -> Module:
        return generator.choice(classes)()

    living = [make() for _ in range(8)]

    def nest(depth: int) -> None:
        if depth == 0:
            for _ in range(generator.randrange(1, 4)):
                account.check()
            return
        kind = generator.randrange(4)
        if kind == 0:
            construct = generator.choice(names)
            CONSTRUCTS[construct](lambda: nest(depth - 1), generator.randrange(99))
            return
        # One that lives on, one that its caller holds, one that nobody holds but the call.
        module = generator.choice(living) if kind == 1 else make()
        if kind == 2:
            module(nest, depth - 1)
        else:
            Module.__call__(make(), nest, depth - 1)

    addresses: list[int] = []
    for number in range(700):
        if number % 20 == 0:  # of one class, those that die unnamed are soon not asked about any more
            classes = [type(f"Module{number}", (Module,), {}), type(f"Other{number}", (Module,), {})]
        nest(generator.randrange(6))
        # The same calls again, of others at the same addresses.
        for _ in range(generator.randrange(6)):
            made = make()
            addresses.append(id(made))
            made(nest, 0)
            del made
        # And of the same ones, which may be named between two calls on one line.
        for module in living * 2:
            module(nest, 0)
            module(nest, 0)
        if generator.random() < 0.05:
            living[generator.randrange(len(living))] = make()
            living[generator.randrange(len(living))] = make()
        if generator.random() < 0.02:
            gc.collect()
    came_back = len(addresses) - len(set(addresses))
    checker.expect(came_back > len(addresses) // 4, f"of {len(addresses)} addresses {came_back} came back")
    checker.expect(checker.compared > 1000 and len(account.taken) > 100, f"{len(account.taken)} objects had a name")


def module_in_a_cell(checker: Checker, seed: int) -> None:
    """Check that a first argument that an inner function shares is not read."""

    def call(self: object, inner: Callable[[], Any]) -> Any:
        return (lambda: self and inner())()

    checker.expect(not checker.probe.watch_calls(call.__code__), "a cell was taken for a module")
    checker.expect(not checker.probe.watch_calls((lambda *modules: 0).__code__), "a tuple was taken for a module")
    call(checker, checker.check_fast)


def module_that_is_let_go_of(checker: Checker, seed: int) -> None:
    """Check that a call whose frame has deleted its module has no module, though the same code runs."""

    def call(self: object, lets_go: bool) -> list[int]:
        if lets_go:
            del self
        return [frame[4] for frame in checker.probe.frames(checker.walk())]

    checker.expect(checker.probe.watch_calls(call.__code__), "calls of modules cannot be watched")
    for lets_go in (True, False, True, True, False, False):
        modules_found = call(checker, lets_go)
        checker.expect(any(modules_found) != lets_go, f"{modules_found}, though {lets_go=}")


class WalkingAtExit:
    """Walks when the interpreter takes the modules down, and prints the result then."""

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
        *(each_construct, random_programs, reused_addresses, deep_recursion, around_the_depth_that_is_kept, threads),
        *(native_thread, gil_held_elsewhere, ids, sessions, deaths, fork, fork_while_walking),
        *(exit_while_threads_walk, walk_at_exit, modules, module_in_a_cell, module_that_is_let_go_of),
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
