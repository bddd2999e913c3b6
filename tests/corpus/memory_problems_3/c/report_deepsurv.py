"""Cox proportional hazards with a small neural network on a registry of patients."""
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


@dataclass
class Config:
    patients: int = 18000
    held_out: int = 4000
    covariates: int = 41
    hidden: tuple = (128, 128, 64)
    dropout: float = 0.2
    lr: float = 1e-3
    lr_decay: float = 0.999
    l2: float = 1e-4
    epochs: int = 30


class DeepSurv(nn.Module):
    def __init__(self, config):
        super().__init__()
        layers, width = [], config.covariates
        for size in config.hidden:
            layers += [nn.Linear(width, size), nn.BatchNorm1d(size), nn.ReLU(), nn.Dropout(config.dropout)]
            width = size
        layers.append(nn.Linear(width, 1))
        self.model = nn.Sequential(*layers)

    def forward(self, x):
        return self.model(x)


class Regularization:
    def __init__(self, weight):
        self.weight = weight

    def __call__(self, model):
        return self.weight * sum(p.norm(p=2) for n, p in model.named_parameters() if n.endswith("weight"))


class NegativeLogLikelihood(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.reg = Regularization(config.l2)

    def forward(self, risk, time, event, model):
        at_risk = torch.ones(time.shape[0], time.shape[0], device=time.device)
        at_risk[(time.T - time) > 0] = 0
        log_loss = torch.exp(risk) * at_risk
        log_loss = torch.sum(log_loss, dim=0) / torch.sum(at_risk, dim=0)
        log_loss = torch.log(log_loss).reshape(-1, 1)
        partial = -torch.sum((risk - log_loss) * event) / torch.sum(event)
        return partial + self.reg(model)


def load_registry(count, covariates, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, covariates, generator=generator)
    hazard = torch.exp(0.4 * x[:, :1] - 0.3 * x[:, 1:2])
    time = -torch.log(torch.rand(count, 1, generator=generator)) / hazard
    event = (torch.rand(count, 1, generator=generator) < 0.6).float()
    return TensorDataset(x, time, event)


def c_index(risk, time, event, pairs=20000):
    first = torch.randint(len(risk), (pairs,))
    second = torch.randint(len(risk), (pairs,))
    comparable = (time[first] < time[second]).squeeze(1) & (event[first] > 0).squeeze(1)
    agree = (risk[first] > risk[second]).squeeze(1) & comparable
    return agree.sum().item() / max(1, comparable.sum().item())


def train(config):
    device = torch.device("cuda")
    train_set = load_registry(config.patients, config.covariates, seed=1)
    test_set = load_registry(config.held_out, config.covariates, seed=2)
    train_loader = DataLoader(train_set, batch_size=len(train_set))
    test_loader = DataLoader(test_set, batch_size=512)
    model = DeepSurv(config).to(device)
    criterion = NegativeLogLikelihood(config).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=config.lr)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, config.lr_decay)

    best = 0.0
    for epoch in range(1, config.epochs + 1):
        model.train()
        for x, time, event in train_loader:
            risk = model(x.to(device))
            loss = criterion(risk, time.to(device), event.to(device), model)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        scheduler.step()

        model.eval()
        risks, times, events = [], [], []
        with torch.no_grad():
            for x, time, event in test_loader:
                risks.append(model(x.to(device)).cpu())
                times.append(time)
                events.append(event)
        score = c_index(torch.cat(risks), torch.cat(times), torch.cat(events))
        best = max(best, score)
        print(f"epoch {epoch}: loss {loss.item():.4f} c-index {score:.4f} (best {best:.4f})")
    return best


if __name__ == "__main__":
    torch.manual_seed(0)
    train(Config())
    print("max allocated", torch.cuda.max_memory_allocated() // 2**20, "MiB")
