"""A trainer hands the gradients of each step to a thread that writes histograms, through a queue without a bound; the thread is slower than training."""

import queue
import sys
import threading
import time

import torch
from torch import nn


class HistogramWriter:
    def __init__(self):
        self.jobs = queue.Queue()
        self.closed = threading.Event()
        self.written = 0
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def put(self, step, gradients):
        self.jobs.put((step, gradients))  # LEAK

    def run(self):
        while not self.closed.is_set():
            try:
                step, gradients = self.jobs.get(timeout=0.05)
            except queue.Empty:
                continue
            for gradient in gradients:
                gradient.abs().mean().item()
            time.sleep(0.02)  # The disk is on the network.
            self.written += 1

    def close(self):
        self.closed.set()
        self.thread.join()


def main():
    device = sys.argv[1]
    torch.manual_seed(61)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    writer = HistogramWriter()
    for step in range(350):
        inputs = torch.randn(64, 64, device=device)
        loss = (model(inputs) - inputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        writer.put(step, [p.grad.detach().clone() for p in model.parameters()])  # LEAK
        optimizer.step()
    writer.close()
    print("training done; some histograms not written")


if __name__ == "__main__":
    main()
