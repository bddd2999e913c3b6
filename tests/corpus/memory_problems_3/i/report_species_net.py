"""Joint species distribution model: site covariates to occurrence probabilities."""
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

SITES = 2048
COVARIATES = 40
SPECIES = 600
EPOCHS = 100
BATCH = 768


class SurveySites:
    def __init__(self, device, seed=5):
        gen = torch.Generator().manual_seed(seed)
        self.covariates = torch.randn(SITES, COVARIATES, generator=gen).to(device)
        self.occurrence = (torch.rand(SITES, SPECIES, generator=gen) < 0.1).float().to(device)
        self.split = int(SITES * 0.75)

    def train_batches(self):
        for start in range(0, self.split, BATCH):
            stop = min(start + BATCH, self.split)
            yield self.covariates[start:stop], self.occurrence[start:stop]

    def held_out(self):
        return self.covariates[self.split:], self.occurrence[self.split:]


class SpeciesNet(nn.Module):
    def __init__(self, hidden=(512, 1024, 512), dropout=0.2):
        super().__init__()
        sizes = [COVARIATES, *hidden]
        blocks = []
        for fan_in, fan_out in zip(sizes[:-1], sizes[1:]):
            blocks += [nn.Linear(fan_in, fan_out), nn.SELU(), nn.Dropout(dropout)]
        self.trunk = nn.Sequential(*blocks)
        self.out = nn.Linear(sizes[-1], SPECIES)

    def forward(self, covariates):
        return self.out(self.trunk(covariates))


class FittedModel:
    """What `fit` returns: the network, its loss curves and the weights."""

    def __init__(self, net):
        self.net = net
        self.losses = {"train": [], "valid": []}
        self.weights = []
        self.best_epoch = 0

    def record(self, epoch, train_loss, valid_loss):
        self.losses["train"].append(train_loss)
        self.losses["valid"].append(valid_loss)
        self.weights.append({name: value.detach().clone()
                             for name, value in self.net.state_dict().items()})
        if valid_loss <= min(self.losses["valid"]):
            self.best_epoch = epoch

    def use_best(self):
        self.net.load_state_dict(self.weights[self.best_epoch])
        return self.net


def elastic_penalty(net, strength=1e-6):
    return strength * sum(p.abs().sum() for p in net.parameters())


def validate(net, sites):
    net.eval()
    with torch.no_grad():
        covariates, occurrence = sites.held_out()
        return F.binary_cross_entropy_with_logits(net(covariates), occurrence).item()


def fit(sites, device, epochs=EPOCHS, lr=1e-3):
    net = SpeciesNet().to(device)
    fitted = FittedModel(net)
    optimizer = torch.optim.RMSprop(net.parameters(), lr=lr)
    for epoch in range(epochs):
        net.train()
        running, batches = 0.0, 0
        for covariates, occurrence in sites.train_batches():
            optimizer.zero_grad()
            loss = F.binary_cross_entropy_with_logits(net(covariates), occurrence)
            loss = loss + elastic_penalty(net)
            loss.backward()
            optimizer.step()
            running += loss.item()
            batches += 1
        fitted.record(epoch, running / batches, validate(net, sites))
        if epoch % 20 == 19:
            print(f"epoch {epoch + 1:3d} train {fitted.losses['train'][-1]:.4f} "
                  f"valid {fitted.losses['valid'][-1]:.4f}")
    return fitted


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    torch.manual_seed(0)
    sites = SurveySites(device)
    fitted = fit(sites, device)
    net = fitted.use_best()
    print("best epoch", fitted.best_epoch, "held-out loss", round(validate(net, sites), 4))


if __name__ == "__main__":
    main()
