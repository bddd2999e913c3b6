"""Minimal event-driven loop: run a process function over an iterable."""
from collections import defaultdict
from enum import Enum


class Events(Enum):
    STARTED = "started"
    ITERATION_STARTED = "iteration_started"
    ITERATION_COMPLETED = "iteration_completed"
    COMPLETED = "completed"


class State:
    def __init__(self):
        self.iteration = 0
        self.batch = None
        self.output = None
        self.metrics = {}


class Engine:
    def __init__(self, process_function):
        self._process_function = process_function
        self._handlers = defaultdict(list)
        self.state = State()

    def on(self, event, every=1):
        def decorate(function):
            self._handlers[event].append((every, function))
            return function

        return decorate

    def _fire(self, event):
        for every, function in self._handlers[event]:
            if every == 1 or self.state.iteration % every == 0:
                function(self)

    def run(self, data):
        self.state = State()
        self._fire(Events.STARTED)
        for batch in data:
            self.state.batch = batch
            self.state.iteration += 1
            self._fire(Events.ITERATION_STARTED)
            self.state.output = self._process_function(self, self.state.batch)
            self._fire(Events.ITERATION_COMPLETED)
        self._fire(Events.COMPLETED)
        return self.state
