"""Average attributions of an ensemble of chromatin accessibility models over a set of peaks."""
import numpy as np
import torch
from torch import nn

from attribution.deep_lift import deep_lift_shap

FOLDS = 8
PEAKS = 128
WINDOW = 2114
ALPHABET = "ACGT"


class Residual(nn.Module):
    def __init__(self, filters, dilation):
        super().__init__()
        self.conv = nn.Conv1d(filters, filters, 3, padding=dilation, dilation=dilation)
        self.act = nn.ReLU()

    def forward(self, x):
        return x + self.act(self.conv(x))


class ProfileNet(nn.Module):
    """BPNet-like network: dilated convolutions, one count output for each cell type."""

    def __init__(self, filters=48, layers=7, outputs=3):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv1d(4, filters, 21, padding=10), nn.ReLU())
        self.tower = nn.Sequential(*[Residual(filters, 2 ** i) for i in range(1, layers + 1)])
        self.counts = nn.Linear(filters, outputs)

    def forward(self, x):
        return self.counts(self.tower(self.stem(x)).mean(dim=-1))


def random_sequences(n, length, seed=0):
    rng = np.random.default_rng(seed)
    return ["".join(rng.choice(list(ALPHABET), length)) for _ in range(n)]


def one_hot(sequences):
    table = np.zeros(256, dtype=np.int64)
    for i, letter in enumerate(ALPHABET):
        table[ord(letter)] = i
    codes = torch.from_numpy(np.stack([table[np.frombuffer(s.encode(), dtype=np.uint8)] for s in sequences]))
    return torch.nn.functional.one_hot(codes, 4).transpose(1, 2).float()


def load_fold(fold):
    torch.manual_seed(fold)
    model = ProfileNet().cuda().eval()
    for p in model.parameters():
        p.requires_grad_(False)
    return model


@torch.no_grad()
def predict(models, X, batch_size=64):
    rows = []
    for start in range(0, X.shape[0], batch_size):
        x = X[start:start + batch_size].cuda()
        rows.append(torch.stack([m(x) for m in models]).mean(dim=0).cpu())
    return torch.cat(rows)


def main():
    X = one_hot(random_sequences(PEAKS, WINDOW))
    models = [load_fold(f) for f in range(FOLDS)]
    total = torch.zeros_like(X)
    for fold, model in enumerate(models):
        for target in range(3):
            attribution = deep_lift_shap(model, X, target=target, batch_size=32, seed=fold)
            total += attribution / (FOLDS * 3)
        print(f"fold {fold}: mean |attribution| {attribution.abs().mean():.3e}")
    counts = predict(models, X)
    top = total.abs().sum(dim=1).mean(dim=0).topk(5).indices.tolist()
    print("predicted counts", tuple(counts.shape), "strongest positions", top)


if __name__ == "__main__":
    main()
