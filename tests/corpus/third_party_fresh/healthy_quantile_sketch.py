"""Watches latencies of 30 services by quantile sketches on the device; levels fill, are halved into the next, and fill again."""

import random
import sys

import torch


class QuantileSketch:
    def __init__(self, capacity, device):
        self.capacity = capacity
        self.device = device
        self.levels = [torch.empty(0, device=device)]
        self.seen = 0

    def add(self, values):
        self.seen += len(values)
        self._put(0, values)

    def _put(self, level, values):
        if level == len(self.levels):
            self.levels.append(torch.empty(0, device=self.device))
        joined = torch.cat([self.levels[level], values])
        if len(joined) < self.capacity:
            self.levels[level] = joined
            return
        kept = joined.sort().values
        even = len(kept) // 2 * 2
        self.levels[level] = kept[even:].clone()
        self._put(level + 1, kept[:even][self.seen % 2 :: 2].clone())

    def quantile(self, q):
        values = torch.cat(self.levels)
        weights = torch.cat([torch.full_like(level, float(2**i)) for i, level in enumerate(self.levels)])
        order = values.argsort()
        passed = weights[order].cumsum(0) / weights.sum()
        return values[order][torch.searchsorted(passed, q).clamp_max(len(values) - 1)].item()


def main():
    device = sys.argv[1]
    torch.manual_seed(50)
    torch.set_num_threads(1)
    rng = random.Random(50)
    services = [f"service-{i}" for i in range(30)]
    sketches = {service: QuantileSketch(1024, device) for service in services}
    alarms = 0
    for minute in range(2600):
        for service in rng.sample(services, 10):
            typical = 1 + services.index(service) % 7
            latencies = typical * torch.randn(rng.randint(40, 160), device=device).exp()
            sketches[service].add(latencies)
        if minute % 60 == 59:
            alarms += sum(sketch.quantile(0.95) > 25 for sketch in sketches.values() if sketch.seen)
    print(f"{sum(sketch.seen for sketch in sketches.values())} latencies, {alarms} alarms")


if __name__ == "__main__":
    main()
