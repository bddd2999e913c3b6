# ruff: noqa: F811
"""Programs that hold more and more memory: leaks, and growth that resembles a leak. Recorded into the working folder.

python tests/support/growth_programs.py     # PROGRAM.alloctrace for each program, with object scans
"""

from __future__ import annotations

import collections
import copy
import functools
import math
import queue
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from steady_clock import make_steady, tick

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.recording import object_scans

STEPS = 60
SIZE = 100_000
"""Bytes of one block."""
LAYERS = 48

PROGRAMS: dict[str, Callable[[], Any]] = {}
sessions: list[alloctrace.Session] = []


def program(name: str) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Return a decorator that registers a program. Its functions may have the same name as those of other programs."""

    def register(function: Callable[[], Any]) -> Callable[[], Any]:
        PROGRAMS[name] = function
        return function

    return register


def block(size: int = SIZE) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8)


def scan() -> None:
    """Scan the objects if it is time, as the polling thread would."""
    sessions[-1]._object_scans.scan_if_due()


def work() -> None:
    """Allocate a block that is freed at once, and scan."""
    block(2 * SIZE)
    scan()


def run_steps(body: Callable[[int], Any], steps: int = STEPS) -> None:
    for number in range(steps):
        work()
        body(number)
        alloctrace.step()


# Containers with and without a bound


@program("deque")
def main() -> None:
    recent: collections.deque[torch.Tensor] = collections.deque(maxlen=200)
    run_steps(lambda number: recent.append(block()))


@program("list")
def main() -> None:
    recent: list[torch.Tensor] = []
    run_steps(lambda number: recent.append(block()))


@program("lru cache")
def main() -> None:
    @functools.lru_cache(maxsize=200)
    def encode(number: int) -> torch.Tensor:
        return block()

    run_steps(encode)


@program("unbounded lru cache")
def main() -> None:
    @functools.cache
    def encode(number: int) -> torch.Tensor:
        return block()

    run_steps(encode)


@program("queue")
def main() -> None:
    results: queue.Queue[torch.Tensor] = queue.Queue(200)
    run_steps(lambda number: results.put(block()))


@program("unbounded queue")
def main() -> None:
    results: queue.Queue[torch.Tensor] = queue.Queue()
    run_steps(lambda number: results.put(block()))


@program("deque that another line filled before")
def main() -> None:
    recent: collections.deque[torch.Tensor] = collections.deque(maxlen=STEPS // 2)

    def keep(number: int) -> None:
        recent.append(torch.empty(4096, dtype=torch.uint8) if number < STEPS // 3 else block())

    run_steps(keep, STEPS // 3 + STEPS // 2 - 2)


@program("full deque of growing lists")
def main() -> None:
    users = collections.deque([[] for _ in range(5)], maxlen=5)
    run_steps(lambda number: users[number % 5].append(block()))


@program("deque of growing lists that is not full")
def main() -> None:
    users = collections.deque([[] for _ in range(5)], maxlen=200)
    run_steps(lambda number: users[number % 5].append(block()))


@program("deque whose entries grow")
def main() -> None:
    epochs: collections.deque[tuple[torch.Tensor, ...]] = collections.deque(maxlen=200)
    run_steps(lambda number: epochs.append(tuple(block() for _ in range(1 + number // 4))))


@program("deque, then a list")
def main() -> None:
    recent: collections.deque[torch.Tensor] = collections.deque(maxlen=200)
    run_steps(lambda number: recent.append(block()))
    outputs: list[torch.Tensor] = []
    for _ in range(STEPS):
        outputs.append(predict())


# Optimizer state


class Layers(torch.nn.Module):
    def __init__(self, layers: int = STEPS) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(64, 64) for _ in range(layers)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def fit(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.randn(8, 64)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


@program("unfrozen layers")
def main() -> None:
    model = Layers().requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters())
    for layer in model.layers:
        layer.requires_grad_(True)
        fit(model, optimizer)


@program("optimizers kept")
def main() -> None:
    model, optimizers = Layers(2), []
    for _ in range(STEPS):
        optimizers.append(torch.optim.Adam(model.parameters()))
        fit(model, optimizers[-1])


@program("layers added")
def main() -> None:
    model = Layers(1)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(STEPS):
        layer = torch.nn.Linear(64, 64)
        model.layers.append(layer)
        optimizer.add_param_group({"params": list(layer.parameters())})
        fit(model, optimizer)


# One call


def predict() -> torch.Tensor:
    work()
    return block()


def evaluate() -> None:
    outputs = []
    for _ in range(STEPS):
        outputs.append(predict())


@program("local of one call")
def main() -> None:
    evaluate()


@program("local of one call after steps")
def main() -> None:
    run_steps(lambda number: None)
    evaluate()


@program("local of one call of an inner function")
def main() -> None:
    def evaluate() -> None:
        outputs = []
        for _ in range(STEPS):
            outputs.append(predict())

    evaluate()


OUTPUTS: list[torch.Tensor] = []


def evaluate_into_global() -> None:
    for _ in range(STEPS):
        OUTPUTS.append(predict())


@program("global")
def main() -> None:
    evaluate_into_global()
    OUTPUTS.clear()


class Evaluator:
    def __init__(self) -> None:
        self.outputs: list[torch.Tensor] = []

    def run(self) -> None:
        for _ in range(STEPS):
            self.outputs.append(predict())


@program("attribute")
def main() -> None:
    evaluator = Evaluator()
    evaluator.run()


def train() -> None:
    losses = []
    for _ in range(STEPS):
        losses.append(predict())
        alloctrace.step()


@program("local of the function with the steps")
def main() -> None:
    train()


@program("comprehension")
def main() -> None:
    def handle(model: torch.nn.Module) -> list[torch.Tensor]:
        return [model(torch.randn(8, 64)) for _ in range(STEPS)]

    with torch.no_grad():
        handle(torch.nn.Linear(64, 64))


@program("local of the function with the steps, in another function")
def main() -> None:
    def train() -> None:
        losses = []
        for _ in range(STEPS):
            losses.append(predict())
            alloctrace.step()

    train()


class Application:
    def main(self) -> None:
        outputs = []
        for _ in range(STEPS):
            outputs.append(predict())


@program("local of a method main")
def main() -> None:
    Application().main()


# Collected and concatenated


@program("joined")
def main() -> None:
    parts = []
    for _ in range(STEPS):
        parts.append(predict())
    whole = torch.cat(parts)
    parts.clear()
    del whole


@program("not joined")
def main() -> None:
    parts = []
    for _ in range(STEPS):
        parts.append(predict())
    parts.clear()


# Backlogs


@program("longer inputs")
def main() -> None:
    states: dict[int, torch.Tensor] = {}

    def body(number: int) -> None:
        for token in range(2 + number // 2):
            states[token] = block(1000)

    run_steps(body, 160)


@program("longer queue")
def main() -> None:
    waiting: collections.deque[torch.Tensor] = collections.deque()

    def body(number: int) -> None:
        for _ in range(3):
            waiting.append(block(1000))
        waiting.popleft()
        waiting.popleft()

    run_steps(body, 160)


@program("hooks")
def main() -> None:
    model = torch.nn.Linear(64, 64)

    def register() -> None:
        last: list[torch.Tensor] = []

        def remember(module: torch.nn.Module, inputs: Any, output: torch.Tensor) -> None:
            last[:] = [output.detach().clone()]

        model.register_forward_hook(remember)

    for _ in range(160):
        register()
        with torch.no_grad():
            model(torch.randn(8, 64))
        alloctrace.step()


# Other holders


def register_once(model: torch.nn.Module) -> None:
    seen: list[torch.Tensor] = []
    model.register_forward_hook(lambda module, inputs, output: seen.append(output.detach()))


@program("hook that appends")
def main() -> None:
    model = torch.nn.Linear(64, 64)
    register_once(model)
    run_steps(lambda number: model(torch.randn(8, 64)))


def remember(crop: torch.Tensor, crops: list[torch.Tensor] = []) -> None:  # noqa: B006
    crops.append(crop)


@program("default value")
def main() -> None:
    run_steps(lambda number: remember(block()))


def fail() -> None:
    batch = block()
    raise ValueError(batch.shape)


@program("exceptions")
def main() -> None:
    errors: list[Exception] = []

    def body(number: int) -> None:
        try:
            fail()
        except ValueError as error:
            errors.append(error)

    run_steps(body)


def make_counter() -> Callable[[int], None]:
    history: list[torch.Tensor] = []
    return lambda number: history.append(block())


@program("closure")
def main() -> None:
    run_steps(make_counter())


@program("closures")
def main() -> None:
    callbacks: list[Callable[[], int]] = []

    def body(number: int) -> None:
        x = block()
        callbacks.append(lambda: len(x))

    run_steps(body)


@program("buffer in a closure")
def main() -> None:
    def make() -> Callable[[int], None]:
        keys = torch.empty(0, dtype=torch.uint8)

        def extend(number: int) -> None:
            nonlocal keys
            keys = torch.cat([keys, block(1000)])

        return extend

    run_steps(make())


# One pass


@program("layers built")
def main() -> None:
    Layers(LAYERS)


@program("layers converted")
def main() -> None:
    Layers(LAYERS).to(torch.float64)


@program("layers loaded")
def main() -> None:
    state = {name: value.clone() for name, value in Layers(LAYERS).state_dict().items()}
    Layers(LAYERS).load_state_dict(state, assign=True)


@program("one forward")
def main() -> None:
    Layers(LAYERS)(torch.randn(8, 64))


@program("forwards")
def main() -> None:
    model, outputs = Layers(LAYERS), []
    for _ in range(50):
        work()
        outputs.append(model(torch.randn(8, 64)))


@program("forwards without temporary blocks")
def main() -> None:
    model, outputs = Layers(LAYERS), []
    for _ in range(50):
        scan()
        outputs.append(model(torch.randn(8, 64)))


# Clocks


@program("alternating optimizers")
def main() -> None:
    models = [Layers(1) for _ in range(4)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    for number in range(300):
        # The first task comes at uneven intervals.
        task = 0 if number % 37 in (0, 3, 20) else 1 + number % 3
        fit(models[task], optimizers[task])


@program("wait before the growth")
def main() -> None:
    for _ in range(1000):
        tick()
    losses: list[torch.Tensor] = []

    def body(number: int) -> None:
        losses.append(block())
        tick()

    run_steps(body)


# Few blocks, growth that stopped


def keep_sometimes(interval: int, steps: int) -> None:
    kept = []

    def body(number: int) -> None:
        if number % interval == interval // 2:
            kept.append(block())

    run_steps(body, steps)


@program("5 arrivals")
def main() -> None:
    keep_sometimes(20, 105)


@program("models on demand")
def main() -> None:
    models: dict[int, torch.nn.Module] = {}
    run_steps(lambda number: models.setdefault(number // 20, torch.nn.Linear(160, 160)), 105)


def answer(model: torch.nn.Module) -> None:
    scan()
    with torch.no_grad():
        model(torch.randn(8, 64))


@program("lines of one list")
def main() -> None:
    kept = []

    def keep() -> None:
        large = torch.empty(SIZE, dtype=torch.uint8)
        small = torch.empty(SIZE // 10, dtype=torch.uint8)
        kept.append((large, small))

    run_steps(lambda number: keep())


@program("views of batches")
def main() -> None:
    last = []

    def keep(number: int) -> None:
        batch = torch.zeros(SIZE // 1000, 250)
        last.append(batch[-1])

    run_steps(keep)


@program("models of requests")
def main() -> None:
    registry: dict[int, torch.nn.Module] = {}
    for user in range(STEPS):
        answer(registry.setdefault(user, Layers(3)))


@program("models of the last requests")
def main() -> None:
    registry: dict[int, torch.nn.Module] = {}
    for user in range(STEPS):
        answer(registry.setdefault(user, Layers(3)))
        registry.pop(user - 1, None)


def run_threads(serve: Callable[[], None]) -> None:
    for _ in range(STEPS):
        thread = threading.Thread(target=serve)
        thread.start()
        thread.join()


@program("models of threads")
def main() -> None:
    base, models = Layers(3), []

    def serve() -> None:
        models.append(copy.deepcopy(base))
        answer(models[-1])

    run_threads(serve)


@program("models of threads that end")
def main() -> None:
    base = Layers(3)
    run_threads(lambda: answer(copy.deepcopy(base)))


@program("models of folds")
def main() -> None:
    models: list[torch.nn.Module] = []

    def train(number: int) -> None:
        if number % 10 == 0:
            models.append(Layers(3))
        fit(models[-1], torch.optim.SGD(models[-1].parameters()))

    run_steps(train, 100)


@program("layers added one by one")
def main() -> None:
    layers = []
    for _ in range(LAYERS):
        scan()
        layers.append(torch.nn.Linear(64, 64))
    answer(torch.nn.Sequential(*layers))


@program("7 arrivals")
def main() -> None:
    keep_sometimes(20, 145)


@program("stopped")
def main() -> None:
    kept = []
    run_steps(lambda number: kept.append(block()) if number < STEPS // 2 else None)


# Autograd graphs


@program("running total")
def main() -> None:
    weight, total = torch.ones(64, requires_grad=True), torch.zeros(())
    for _ in range(100):
        for _ in range(20):
            total = total + weight.sum()  # keeps no tensor
        alloctrace.step()


@program("running total of activations")
def main() -> None:
    model, total = Layers(1), torch.zeros(())
    for _ in range(100):
        for _ in range(20):
            total = total + model(torch.randn(8, 64)).sum()
        alloctrace.step()


@program("outputs of an epoch")
def main() -> None:
    for _ in range(4):
        outputs = []
        run_steps(lambda number, outputs=outputs: outputs.append(block()))


@program("two lists that grow now and then")
def main() -> None:
    inputs, outputs = [], []

    def keep_input() -> None:
        inputs.append(torch.empty(SIZE, dtype=torch.uint8))

    def keep_output() -> None:
        outputs.append(torch.empty(2 * SIZE, dtype=torch.uint8))

    def keep(number: int) -> None:
        for _ in range(4 if number % 20 == 0 else 0):
            keep_input()
            work()
            keep_output()

    run_steps(keep, 200)


@program("sliding window")
def main() -> None:
    window: collections.deque[torch.Tensor] = collections.deque(maxlen=STEPS // 2)
    run_steps(lambda number: window.append(block()), 4 * STEPS)


@program("blocks that move one by one")
def main() -> None:
    blocks = [block() for _ in range(STEPS)]

    def move(number: int) -> None:
        blocks[number] = blocks[number].clone()

    run_steps(move)


@program("blocks that move and are kept")
def main() -> None:
    blocks = [block() for _ in range(STEPS)]
    earlier = []

    def move(number: int) -> None:
        earlier.append(blocks[number])
        blocks[number] = blocks[number].clone()

    run_steps(move)


@program("buffer taken from a pool")
def main() -> None:
    pool, chosen, rounds = block(40 * STEPS * 100), block(0), []

    def take(number: int) -> None:
        nonlocal pool, chosen
        chosen = torch.cat((chosen, pool[:4000]))
        pool = pool[4000:].clone()
        rounds.append(block(3000))

    run_steps(take)


@program("buffer beside another")
def main() -> None:
    chosen, other = block(0), block(0)

    def take(number: int) -> None:
        nonlocal chosen, other
        chosen = torch.cat((chosen, block(4000)))
        other = torch.cat((other, block(4000)))

    run_steps(take)


@program("buffer that restarts")
def main() -> None:
    for number in range(STEPS):
        tokens = block(8)
        for _ in range(10 + 4 * number):
            scan()
            tokens = torch.cat((tokens, block(8)))
        alloctrace.step()


def run_epochs(validate: Callable[[], Any]) -> None:
    for _ in range(3):
        run_steps(lambda number: None, STEPS // 3)
        validate()
    run_steps(lambda number: None, STEPS // 3)


def forward(weight: torch.Tensor) -> torch.Tensor:
    scan()
    return (weight * 2).exp().mean()


@program("validation that adds up losses")
def main() -> None:
    weight = torch.ones(SIZE // 4, requires_grad=True)

    def validate() -> float:
        total = torch.zeros(())
        for _ in range(STEPS):
            total += forward(weight)
        return float(total)

    run_epochs(validate)


@program("validation that adds up numbers")
def main() -> None:
    weight = torch.ones(SIZE // 4, requires_grad=True)

    def validate() -> float:
        total = 0.0
        for _ in range(STEPS):
            total += forward(weight).item()
        return total

    run_epochs(validate)


@program("validation that joins outputs")
def main() -> None:
    def validate() -> int:
        outputs = block(0)
        for _ in range(STEPS):
            scan()
            outputs = torch.cat((outputs, block()))
        return len(outputs)

    run_epochs(validate)


def make_output() -> torch.Tensor:
    hidden = block(SIZE)
    return torch.cat((hidden, hidden))


@program("few outputs joined at the end")
def main() -> None:
    def validate() -> int:
        outputs = []
        for _ in range(8):
            outputs.append(make_output())
            if len(outputs) == 5:
                sessions[-1]._object_scans.scan_now()
        return len(torch.cat(outputs))

    run_epochs(validate)


@program("outputs beside a buffer as large as a temporary")
def main() -> None:
    def validate() -> int:
        outputs = []
        for index in range(8):
            if index == 3:
                buffer = block(4 * SIZE)
            temporary = block(4 * SIZE)
            outputs.append(make_output())
            del temporary
        return len(outputs) + len(buffer)

    run_epochs(validate)


@program("few outputs that no scan saw")
def main() -> None:
    sessions[-1]._object_scans._due_event = math.inf

    def validate() -> int:
        outputs = []
        for _ in range(8):
            block()
            outputs.append(make_output())
        return len(outputs)

    run_epochs(validate)
    validate()


@program("six outputs")
def main() -> None:
    def validate() -> int:
        outputs = []
        for _ in range(6):
            block()
            outputs.append(make_output())
        return len(outputs)

    run_epochs(validate)


LIBRARY_LOOP = """
def run(step, count):
    for _ in range(count):
        step(torch.empty(1000))
"""


@program("outputs that a trainer's loop collects")
def main() -> None:
    names: dict[str, Any] = {"__name__": "trainer.loop", "torch": torch}
    exec(compile(LIBRARY_LOOP, str(Path(torch.__file__).parent.parent / "trainer/loop.py"), "exec"), names)
    outputs = []

    def predict(batch: torch.Tensor) -> None:
        outputs.append(make_output())

    def validate() -> None:
        names["run"](predict, 10)
        outputs.clear()

    run_epochs(validate)


@program("model of eight layers in each epoch")
def main() -> None:
    def train() -> float:
        layers = []
        for _ in range(8):
            block()
            layers.append(torch.nn.Linear(SIZE // 4, 2, bias=False))
        parameters = [layer.weight for layer in layers]
        optimizer = torch.optim.SGD(parameters, lr=0.1)
        sum(parameter.sum() for parameter in parameters).backward()
        optimizer.step()
        return float(parameters[0].detach().sum())

    run_epochs(train)


@program("layers before backward")
def main() -> None:
    weight = torch.ones(SIZE // 4, requires_grad=True)

    def train() -> None:
        hidden = weight
        for _ in range(STEPS):
            scan()
            hidden = (hidden * weight).tanh()
        hidden.sum().backward()

    run_epochs(train)


@program("running total of numbers")
def main() -> None:
    weight, total = torch.ones(64, requires_grad=True), torch.zeros(())
    for _ in range(100):
        for _ in range(20):
            total = total + weight.sum().detach()
        alloctrace.step()


@program("full replay buffer")
def main() -> None:
    replay: collections.deque[torch.Tensor] = collections.deque(maxlen=3 * STEPS)
    run_steps(lambda number: replay.append(block(SIZE * 10)), 6 * STEPS)


@program("nearly full cache")
def main() -> None:
    cache: dict[int, torch.Tensor] = {}

    def look_up(number: int) -> None:
        key = (number * number) % 97  # 49 keys; new ones come more and more seldom
        if key not in cache:
            cache[key] = block(SIZE * 10)

    run_steps(look_up, 4 * STEPS)


@program("numpy arrays")
def main() -> None:
    frames: dict[int, list[Any]] = {}
    for number in range(STEPS):
        work()
        frame = np.empty(20 * SIZE, np.uint8)
        frames.setdefault(number % 4, []).append(frame[:10])  # the view keeps the frame
        alloctrace.step()


def record(name: str) -> None:
    with alloctrace.enable(f"{name}.alloctrace", devices=("cpu",)) as session:
        sessions.append(session)
        PROGRAMS[name]()
    make_steady(session.path)


if __name__ == "__main__":
    torch.set_num_threads(1)
    # Scan whenever there are a fifth more events, on a busy machine too. With less time than `MAX_SCAN_S` left, no
    # scan would follow one that passed over the graphs of a running backward.
    object_scans.FIRST_SCAN_EVENTS = 60
    object_scans.MIN_SCAN_GROWTH = object_scans.TRUNCATED_SCAN_GROWTH = object_scans.MAX_SCAN_GROWTH = 1.2
    object_scans.MAX_FINAL_SCAN_S = object_scans.MAX_SCAN_S = 60.0
    object_scans.FREE_SCAN_S = 3600.0
    for name in sys.argv[1:] or PROGRAMS:
        record(name)
