"""A program with one forked child, which runs until the recorder of the parent has listed it."""

from __future__ import annotations

_PROGRAM = """
import multiprocessing, time, torch
import pytorch_alloctrace as alloctrace

def work(queue):
    {work}
    queue.get()

if __name__ == "__main__":
    method = multiprocessing.get_context("fork")
    queue = method.Queue()
    worker = method.Process(target=work, args=(queue,))
    worker.start()
    while worker.pid not in set(alloctrace.load("run.alloctrace").children()["process"]):
        time.sleep(0.05)
    queue.put(None)
    worker.join()
    print(worker.pid)
"""


def program_with_child(work: str) -> str:
    """Return the source of a program recorded to run.alloctrace. It prints the child's process id.

    work: statements of the child, indented by four.
    """
    return _PROGRAM.format(work=work)
