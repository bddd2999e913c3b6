"""Federated readmission model: every hospital trains locally with differential privacy."""
import copy
import sys
import time

import torch

from privfed.data import Hospital
from privfed.dp import PrivateGradient, epsilon
from privfed.model import AdmissionNet


class Site:
    def __init__(self, hospital, batch_size, device):
        self.hospital, self.batch_size, self.device = hospital, batch_size, device
        self.steps = 0

    def train(self, server_model, local_steps, lr):
        model = copy.deepcopy(server_model)
        optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
        private = PrivateGradient(model)
        for _ in range(local_steps):
            batch = tuple(t.to(self.device) for t in self.hospital.draw(self.batch_size))
            private(batch)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            self.steps += 1
        return {k: v.cpu() for k, v in model.state_dict().items()}

    def spent(self):
        return epsilon(self.steps, self.batch_size / self.hospital.admissions, 0.8)


class Server:
    def __init__(self, device):
        self.device = device
        self.model = AdmissionNet().to(device)

    def aggregate(self, states, weights):
        total = float(sum(weights))
        merged = {}
        for key in states[0]:
            merged[key] = sum(s[key] * (w / total) for s, w in zip(states, weights))
        self.model.load_state_dict(merged)

    @torch.no_grad()
    def brier(self, hospital, n=512):
        *inputs, target = (t.to(self.device) for t in hospital.draw(n))
        return float((torch.sigmoid(self.model(*inputs)) - target).pow(2).mean().cpu())


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    torch.manual_seed(9)
    hospitals = [Hospital("north", 41_000, 1), Hospital("lake", 28_500, 2), Hospital("city", 66_200, 3)]
    server = Server(device)
    sites = [Site(h, 512, device) for h in hospitals]
    count = sum(p.numel() for p in server.model.parameters())
    print(f"model with {count / 1e6:.2f} M parameters, {len(sites)} sites", flush=True)
    for round_number in range(3):
        start = time.time()
        states = [site.train(server.model, local_steps=2, lr=0.1) for site in sites]
        server.aggregate(states, [h.admissions for h in hospitals])
        scores = " ".join(f"{s.hospital.name} {server.brier(s.hospital):.4f} (eps {s.spent():.2f})" for s in sites)
        print(f"round {round_number}: {scores} in {time.time() - start:.1f}s", flush=True)


if __name__ == "__main__":
    main()
