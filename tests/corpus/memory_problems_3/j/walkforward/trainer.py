import torch
import torch.nn as nn


class Callback:
    def __init__(self, trainer):
        self.trainer = trainer

    def after_epoch(self, epoch, loss):
        pass


class EarlyStopping(Callback):
    def __init__(self, trainer, patience=3):
        super().__init__(trainer)
        self.patience, self.best, self.waited = patience, float("inf"), 0

    def after_epoch(self, epoch, loss):
        if loss < self.best:
            self.best, self.waited = loss, 0
        else:
            self.waited += 1
            self.trainer.stopped = self.waited > self.patience


class LinearDecay(Callback):
    def after_epoch(self, epoch, loss):
        trainer = self.trainer
        for group in trainer.optimizer.param_groups:
            group["lr"] = trainer.lr * (1 - (epoch + 1) / trainer.epochs)


class Trainer:
    def __init__(self, model, lr, epochs, device):
        self.model = model.to(device)
        self.lr, self.epochs, self.device = lr, epochs, device
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
        self.criterion = nn.MSELoss()
        self.stopped = False
        self.callbacks = [EarlyStopping(self), LinearDecay(self)]

    def fit(self, batches):
        for epoch in range(self.epochs):
            losses = []
            for features, target in batches:
                loss = self.criterion(self.model(features), target)
                self.optimizer.zero_grad(set_to_none=True)
                loss.backward()
                self.optimizer.step()
                losses.append(loss.detach())
            mean = torch.stack(losses).mean().item()
            for callback in self.callbacks:
                callback.after_epoch(epoch, mean)
            if self.stopped:
                break
        return mean

    @torch.no_grad()
    def predict(self, features):
        self.model.eval()
        return self.model(features)
