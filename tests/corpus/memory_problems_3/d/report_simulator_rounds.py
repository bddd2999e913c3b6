"""Sequential inference of the parameters of a simulator: each round proposes from the last posterior and retrains."""
import argparse
from copy import deepcopy

import torch
from torch import nn


class TraceEmbedding(nn.Module):
    """Compresses a simulated voltage trace to a short summary."""

    def __init__(self, trace_length, summary):
        super().__init__()
        self.compress = nn.Linear(trace_length, 192)
        self.out = nn.Sequential(nn.ReLU(), nn.Linear(192, summary))

    def forward(self, trace):
        return self.out(self.compress(trace))


class DensityEstimator(nn.Module):
    def __init__(self, trace_length, num_parameters, summary=64):
        super().__init__()
        self.embedding = TraceEmbedding(trace_length, summary)
        self.mean = nn.Sequential(nn.Linear(summary, 128), nn.Tanh(), nn.Linear(128, num_parameters))
        self.log_scale = nn.Parameter(torch.zeros(num_parameters))

    def log_prob(self, theta, trace):
        mean = self.mean(self.embedding(trace))
        z = (theta - mean) * torch.exp(-self.log_scale)
        return -0.5 * z.square().sum(dim=1) - self.log_scale.sum()

    @torch.no_grad()
    def sample(self, count, trace):
        mean = self.mean(self.embedding(trace))
        return mean + torch.exp(self.log_scale) * torch.randn(count, mean.shape[1], device=mean.device)


class Posterior:
    """Density estimator, conditioned on the default observation."""

    def __init__(self, estimator, x_o=None):
        self.estimator = estimator
        self.x_o = x_o

    def set_default_x(self, x_o):
        self.x_o = x_o
        return self

    def sample(self, count):
        return self.estimator.sample(count, self.x_o)


class SequentialInference:
    def __init__(self, prior, trace_length, num_parameters, device):
        self.prior = prior
        self.device = device
        self._theta, self._x = [], []
        self._round = 0
        self._estimator = DensityEstimator(trace_length, num_parameters).to(device)
        self._posterior = None
        self._model_bank = []
        self._summary = {"epochs": [], "best_log_prob": []}

    def append_simulations(self, theta, x):
        self._theta.append(theta.cpu())
        self._x.append(x.cpu())
        return self

    def train(self, epochs, batch_size, learning_rate=5e-4):
        theta, x = self._theta[-1], self._x[-1]
        optimizer = torch.optim.SGD(self._estimator.parameters(), lr=learning_rate)
        best = float("-inf")
        for _ in range(epochs):
            for rows in torch.randperm(len(theta)).split(batch_size):
                batch_theta, batch_x = theta[rows].to(self.device), x[rows].to(self.device)
                loss = -self._estimator.log_prob(batch_theta, batch_x).mean()
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
                best = max(best, -loss.item())
        self._estimator.zero_grad(set_to_none=True)
        self._summary["epochs"].append(epochs)
        self._summary["best_log_prob"].append(best)
        self._round += 1
        return self._estimator

    def build_posterior(self, x_o):
        self._posterior = Posterior(self._estimator, x_o)
        self._model_bank.append(deepcopy(self._posterior))
        return self._posterior


def simulate(theta, trace_length):
    time = torch.linspace(0, 1, trace_length, device=theta.device)
    return torch.sin(time * theta[:, :1] * 6.28) + 0.1 * theta[:, 1:2]


def prior(count, num_parameters, device):
    return torch.rand(count, num_parameters, device=device) * 2 - 1


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--simulations", type=int, default=24)
    parser.add_argument("--trace-length", type=int, default=60_000)
    args = parser.parse_args()
    device, num_parameters = "cuda", 6
    inference = SequentialInference(prior, args.trace_length, num_parameters, device)
    x_o = simulate(prior(1, num_parameters, device), args.trace_length)
    proposal = None
    for index in range(args.rounds):
        theta = prior(args.simulations, num_parameters, device) if proposal is None else proposal.sample(args.simulations)
        inference.append_simulations(theta, simulate(theta, args.trace_length))
        inference.train(epochs=1, batch_size=12)
        proposal = inference.build_posterior(x_o)
        print(f"round {index} log prob {inference._summary['best_log_prob'][-1]:.3f} "
              f"{torch.cuda.memory_allocated() / 2**20:.0f} MiB")


if __name__ == "__main__":
    main()
