"""Land cover mapping: training on crops, validation on whole tiles after each epoch."""
import torch
from torch import nn
from torch.utils.data import DataLoader

from landcover import LandCoverNet, Tiles


class Confusion:
    def __init__(self, classes, device):
        self.matrix = torch.zeros(classes, classes, dtype=torch.long, device=device)

    def update(self, predicted, labels):
        classes = len(self.matrix)
        index = labels.flatten() * classes + predicted.flatten()
        ones = torch.ones_like(index)
        self.matrix.view(-1).scatter_add_(0, index.clamp(0, classes * classes - 1), ones)

    def mean_iou(self):
        matrix = self.matrix.float().cpu()
        hits = matrix.diag()
        return (hits / (matrix.sum(0) + matrix.sum(1) - hits).clamp(min=1)).mean().item()


class Trainer:
    def __init__(self, device, epochs=3):
        self.device = device
        self.epochs = epochs
        self.model = LandCoverNet().to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, epochs)
        self.criterion = nn.CrossEntropyLoss(ignore_index=255)
        self.train_loader = DataLoader(Tiles(160, 256), batch_size=8, shuffle=True)
        self.val_loader = DataLoader(Tiles(16, 1536), batch_size=4)

    def _batch(self, batch):
        images, labels = batch
        return images.to(self.device), labels.to(self.device)

    def train_epoch(self):
        self.model.train()
        total = 0.0
        for batch in self.train_loader:
            images, labels = self._batch(batch)
            loss = self.criterion(self.model(images), labels)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            total += loss.item()
        return total / len(self.train_loader)

    def validate(self):
        self.model.eval()
        confusion = Confusion(9, self.device)
        total = 0.0
        for batch in self.val_loader:
            images, labels = self._batch(batch)
            scores = self.model(images)
            total += self.criterion(scores, labels).item()
            confusion.update(scores.argmax(dim=1), labels)
        return total / len(self.val_loader), confusion.mean_iou()

    def fit(self):
        for epoch in range(self.epochs):
            train_loss = self.train_epoch()
            peak = torch.cuda.max_memory_allocated() / 2**20
            print(f"epoch {epoch}: train {train_loss:.4f}, peak so far {peak:.0f} MiB")
            val_loss, iou = self.validate()
            print(f"epoch {epoch}: validation {val_loss:.4f}, mean IoU {iou:.3f}")
            self.scheduler.step()


if __name__ == "__main__":
    torch.manual_seed(0)
    Trainer(torch.device("cuda")).fit()
