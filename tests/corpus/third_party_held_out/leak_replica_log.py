"""A parameter store that sends its updates to followers on threads; the log is cut at the oldest update that all have.

One follower applies updates but never acknowledges them, so the log is never cut.
"""

import queue
import sys
import threading

import torch


class Primary:
    def __init__(self, size, device):
        self.values = torch.zeros(size, device=device)
        self.log = {}
        self.version = 0
        self.acknowledged = {}
        self.lock = threading.Lock()

    def push(self, gradient):
        with self.lock:
            update = gradient.mul(-0.01)  # LEAK
            self.values.add_(update)
            self.version += 1
            self.log[self.version] = update  # LEAK
            return self.version, update

    def acknowledge(self, follower, version):
        with self.lock:
            self.acknowledged[follower] = version
            oldest = min(self.acknowledged.values())
            for old in [known for known in self.log if known <= oldest]:
                del self.log[old]


class Follower(threading.Thread):
    def __init__(self, name, primary, acknowledges):
        super().__init__(name=name)
        self.primary = primary
        self.acknowledges = acknowledges
        self.inbox = queue.Queue()
        self.values = torch.zeros_like(primary.values)
        primary.acknowledged[name] = 0

    def run(self):
        while (message := self.inbox.get()) is not None:
            version, update = message
            self.values.add_(update)
            if self.acknowledges:
                self.primary.acknowledge(self.name, version)
            del message, update
            self.inbox.task_done()


def main():
    device = sys.argv[1]
    torch.manual_seed(34)
    torch.set_num_threads(1)
    primary = Primary(3000, device)
    followers = [Follower(f"follower-{i}", primary, acknowledges=i != 2) for i in range(3)]
    for follower in followers:
        follower.start()
    for _ in range(500):
        message = primary.push(torch.randn(3000, device=device))  # LEAK
        for follower in followers:
            follower.inbox.put(message)
        for follower in followers:
            follower.inbox.join()
    for follower in followers:
        follower.inbox.put(None)
        follower.join()
    print(f"version {primary.version}, {len(primary.log)} updates in the log")


if __name__ == "__main__":
    main()
