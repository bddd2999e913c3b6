"""Route planning: sessions keep the state of their city on the GPU, a report now and then scores all pairs of stops."""
import collections
import threading
import queue

import torch
from torch import nn

Job = collections.namedtuple("Job", "kind key")


class StopEncoder(nn.Module):
    def __init__(self, inputs=16, width=512):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, width))

    def forward(self, stops):
        return self.layers(stops)


class Session:
    def __init__(self, key, stops, encoder, device):
        self.key = key
        self.stops = stops
        with torch.inference_mode():
            self.state = encoder(torch.rand(stops, 16).to(device))

    def best_next(self, stop):
        return int((self.state @ self.state[stop]).argmax()) % self.stops


class PlanningService:
    def __init__(self, device, capacity):
        self.device = device
        self.capacity = capacity
        self.encoder = StopEncoder().to(device).eval()
        self.sessions = collections.OrderedDict()
        self.jobs = queue.Queue()
        self.reports = []

    def open(self, key):
        if len(self.sessions) == self.capacity:
            self.sessions.popitem(last=False)
        self.sessions[key] = Session(key, stops=14_000 + 300 * (key % 7), encoder=self.encoder, device=self.device)

    @torch.inference_mode()
    def report(self, key):
        stops = torch.rand(20_000, 16).to(self.device)
        encoded = self.encoder(stops)
        costs = encoded @ encoded.t()
        nearest = costs.topk(2, dim=1).values[:, 1]
        self.reports.append((key, nearest.mean().item()))

    def work(self):
        while (job := self.jobs.get()) is not None:
            if job.kind == "open":
                self.open(job.key)
            elif job.kind == "next":
                self.sessions[job.key].best_next(0)
            else:
                self.report(job.key)
                print(f"report {job.key}: {len(self.sessions)} sessions, allocated "
                      f"{torch.cuda.memory_allocated() >> 20}, reserved {torch.cuda.memory_reserved() >> 20} MiB")


def traffic(opened, every):
    for key in range(opened):
        yield Job("open", key)
        yield Job("next", key)
        if key % every == 0:
            yield Job("report", key)


def main():
    service = PlanningService(torch.device("cuda"), capacity=80)
    for job in traffic(opened=100, every=4):
        service.jobs.put(job)
    service.jobs.put(None)
    service.work()
    print(f"{len(service.reports)} reports")


if __name__ == "__main__":
    main()
