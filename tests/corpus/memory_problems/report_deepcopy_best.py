"""Kind of report: "GPU memory grows by the size of the model each epoch" (PyTorch forum; keeping the best model).

True cause: each epoch that is not worse than the best makes a deep copy of the model on the device, and the history keeps
all the copies, not only the last.
The line: `self.history.append((epoch, loss, copy.deepcopy(self.model)))`.
Cure: keep one copy of the state_dict on the host ({k: v.cpu().clone()}) or torch.save it; drop the earlier best.
"""

import copy
import math

import torch
from torch import nn


class EarlyStopping:
    def __init__(self, model, patience=5):
        self.model = model
        self.patience = patience
        self.best = math.inf
        self.bad_epochs = 0
        self.history = []

    def step(self, epoch, loss):
        if loss <= self.best:
            self.best, self.bad_epochs = loss, 0
            self.history.append((epoch, loss, copy.deepcopy(self.model)))  # CAUSE
        else:
            self.bad_epochs += 1
        return self.bad_epochs >= self.patience

    def best_model(self):
        return min(self.history, key=lambda item: item[1])[2]


def forecast_net(window=336, horizon=96, width=2048):
    return nn.Sequential(
        nn.Linear(window, width), nn.ReLU(), nn.Dropout(0.2), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, horizon)
    )


def main():
    torch.manual_seed(27)
    series = torch.sin(torch.arange(4000) / 24)
    windows = series.unfold(0, 336 + 96, 8)
    train, valid = windows[:360], windows[360:]
    model = forecast_net().cuda()
    optimizer = torch.optim.Adam(model.parameters())
    stopper = EarlyStopping(model)
    for epoch in range(30):
        model.train()
        for batch in train.split(32):
            batch = batch.cuda()
            loss = nn.functional.l1_loss(model(batch[:, :336]), batch[:, 336:])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            batch = valid.cuda()
            score = nn.functional.l1_loss(model(batch[:, :336]), batch[:, 336:]).item()
        if epoch % 5 == 0:
            print(f"epoch {epoch}: validation {score:.4f}", flush=True)
        if stopper.step(epoch, score):
            break
    best = stopper.best_model().eval()
    print("best model has", sum(p.numel() for p in best.parameters()), "parameters")


if __name__ == "__main__":
    main()
