"""Trains an attention forecaster; what each training step returns is collected for the end of the epoch.

Report: https://github.com/sktime/pytorch-forecasting/pull/1924 ("fixed memory leak in BaseModel by detach some tensor":
        the log of each batch was appended to training_step_outputs with its graph) and issues #1369, #1461 there
Cause:  every step's log, with prediction, attention weights and the graph of the metrics, is kept till the epoch ends.
Line:   self.training_step_outputs.append(log)
Cure:   append only what on_epoch_end needs, detached and on the CPU: {"loss": loss.item(), "mape": ...}.
"""
import math
from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Config:
    encoder_length: int = 144
    prediction_length: int = 24
    features: int = 12
    width: int = 64
    heads: int = 4
    batch_size: int = 96
    batches_per_epoch: int = 400
    epochs: int = 3
    quantiles: tuple = (0.02, 0.1, 0.25, 0.5, 0.75, 0.9, 0.98)


class InterpretableAttention(nn.Module):
    """Attention that also returns its weights, for the plots."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-2, -1) / math.sqrt(width / self.heads)).softmax(dim=-1)
        mixed = (weights @ v).transpose(1, 2).reshape(batch, length, width)
        return self.out(mixed), weights


class FusionForecaster(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.embed = nn.Linear(config.features, config.width)
        self.rnn_like = nn.Sequential(nn.Linear(config.width, config.width), nn.ELU())
        self.attention = InterpretableAttention(config.width, config.heads)
        self.norm = nn.LayerNorm(config.width)
        self.output = nn.Linear(config.width, len(config.quantiles))

    def forward(self, x):
        hidden = self.rnn_like(self.embed(x))
        attended, weights = self.attention(hidden)
        prediction = self.output(self.norm(hidden + attended))[:, -self.config.prediction_length:]
        return {"prediction": prediction, "attention": weights}


class ForecastingModule:
    def __init__(self, config, device):
        self.config = config
        self.device = device
        self.model = FusionForecaster(config).to(device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=3e-3)
        self.quantiles = torch.tensor(config.quantiles, device=device)
        self.training_step_outputs = []

    def quantile_loss(self, prediction, target):
        errors = target[..., None] - prediction
        return torch.maximum(self.quantiles * errors, (self.quantiles - 1) * errors).mean()

    def step(self, x, y):
        out = self.model(x)
        loss = self.quantile_loss(out["prediction"], y)
        median = out["prediction"][..., len(self.config.quantiles) // 2]
        mape = ((y - median).abs() / (y.abs() + 1e-3)).mean()
        return {"loss": loss, "mape": mape, **out}

    def training_step(self, batch):
        log = self.step(*batch)
        self.training_step_outputs.append(log)  # CAUSE
        return log["loss"]

    def on_train_epoch_end(self, epoch):
        losses = [log["loss"].item() for log in self.training_step_outputs]
        focus = torch.stack([log["attention"].mean(dim=(0, 1, 2)) for log in self.training_step_outputs]).mean(dim=0)
        print(f"epoch {epoch}: loss {sum(losses) / len(losses):.4f}, attention over {focus.numel()} positions")
        self.training_step_outputs.clear()

    def train_dataloader(self):
        c = self.config
        for _ in range(c.batches_per_epoch):
            x = torch.rand(c.batch_size, c.encoder_length + c.prediction_length, c.features)
            yield x.to(self.device), torch.rand(c.batch_size, c.prediction_length).to(self.device)


def fit(module):
    for epoch in range(module.config.epochs):
        for number, batch in enumerate(module.train_dataloader()):
            loss = module.training_step(batch)
            module.optimizer.zero_grad()
            loss.backward()
            module.optimizer.step()
            if number % 50 == 0:
                print(f"epoch {epoch} batch {number} loss {loss.item():.4f}")
        module.on_train_epoch_end(epoch)


def main():
    torch.manual_seed(0)
    fit(ForecastingModule(Config(), torch.device("cuda")))
    print("max allocated", torch.cuda.max_memory_allocated() // 2**20, "MiB")


if __name__ == "__main__":
    main()
