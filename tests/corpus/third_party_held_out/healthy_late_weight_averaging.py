"""A trainer with an average of the weights (EMA) from the start, and a second one (SWA) late in the run."""

import sys

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


class ConvNet(nn.Module):
    def __init__(self, classes=10):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3),
            nn.ReLU(),
        )
        self.head = nn.Linear(32, classes)

    def forward(self, images):
        return self.head(self.features(images).mean(dim=(2, 3)))


class Trainer:
    def __init__(self, device, steps):
        self.device = device
        self.steps = steps
        self.model = ConvNet().to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
        self.scheduler = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, max_lr=0.1, total_steps=steps)
        self.ema = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(0.99))
        self.swa = None

    def average(self, step):
        self.ema.update_parameters(self.model)
        if step >= 2 * self.steps // 3:
            if self.swa is None:
                self.swa = AveragedModel(self.model)
            self.swa.update_parameters(self.model)

    def run(self):
        for step in range(self.steps):
            images = torch.rand(12, 3, 16, 16, device=self.device)
            labels = torch.randint(0, 10, (12,), device=self.device)
            loss = nn.functional.cross_entropy(self.model(images), labels, label_smoothing=0.1)
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.scheduler.step()
            self.average(step)
        return loss.item()


def main():
    torch.manual_seed(64)
    torch.set_num_threads(1)
    trainer = Trainer(sys.argv[1], steps=240)
    print(f"last loss {trainer.run():.3f}, average of {int(trainer.swa.n_averaged)} models")


if __name__ == "__main__":
    main()
