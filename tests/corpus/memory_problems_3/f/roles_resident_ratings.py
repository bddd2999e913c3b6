"""Factorisation model for ratings; the whole log and the item texts live on the GPU."""
import numpy as np
import torch
import torch.nn as nn

from membook import PeakWatch, gradients, optimizer_tensors, report, storage_bytes

USERS, ITEMS, RATINGS = 30_000, 8_000, 1_500_000
BATCH, STEPS = 8192, 20


class RatingLog:
    def __init__(self, device, seed=0):
        rng = np.random.default_rng(seed)
        self.users = torch.from_numpy(rng.integers(0, USERS, RATINGS, dtype=np.int32)).to(device)
        self.items = torch.from_numpy(rng.integers(0, ITEMS, RATINGS, dtype=np.int32)).to(device)
        self.stars = torch.from_numpy(rng.random(RATINGS, dtype=np.float32) * 5).to(device)

    def tensors(self):
        return [self.users, self.items, self.stars]

    def batches(self, size, seed):
        g = torch.Generator().manual_seed(seed)
        while True:
            yield self.select(torch.randint(0, RATINGS, (size,), generator=g).to(self.users.device))

    def select(self, rows):
        return self.users[rows].long(), self.items[rows].long(), self.stars[rows]


class Recommender(nn.Module):
    def __init__(self, dim=96, text_dim=256):
        super().__init__()
        self.user = nn.Embedding(USERS, dim)
        self.item = nn.Embedding(ITEMS, dim)
        self.user_bias = nn.Embedding(USERS, 1)
        self.register_buffer("item_text", torch.randn(ITEMS, text_dim))
        self.register_buffer("average", torch.tensor(3.5))
        self.text = nn.Sequential(nn.Linear(text_dim, 128), nn.ReLU(), nn.Linear(128, dim))
        for table in (self.user, self.item, self.user_bias):
            nn.init.normal_(table.weight, std=0.05)

    def forward(self, users, items):
        v = self.item(items) + self.text(self.item_text[items])
        dot = (self.user(users) * v).sum(-1)
        return self.average + self.user_bias(users).squeeze(-1) + dot


def main():
    torch.manual_seed(13)
    device = torch.device("cuda")
    ratings = RatingLog(device)
    model = Recommender().to(device)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
    criterion = nn.MSELoss()
    watch = PeakWatch()
    watch.check(0, "loading")
    sizes = {}
    for step, (users, items, stars) in enumerate(ratings.batches(BATCH, seed=1), 1):
        if step > STEPS:
            break
        optimizer.zero_grad()
        loss = criterion(model(users, items), stars)
        watch.check(step, "forward")
        loss.backward()
        watch.check(step, "backward")
        if step == 15:
            sizes = {
                "parameters": storage_bytes(model.parameters()),
                "buffers": storage_bytes(model.buffers()),
                "gradients": storage_bytes(gradients(model)),
                "optimizer state": storage_bytes(optimizer_tensors(optimizer)),
                "activations": 0,
                "inputs": storage_bytes([users, items, stars, *ratings.tensors()]),
            }
        optimizer.step()
        watch.check(step, "optimizer step")
    report(watch, sizes)


if __name__ == "__main__":
    main()
