# Sequence-to-sequence forecaster of gait kinematics trained with a differentiable time-warping loss.
import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 48
FRAMES = 64
JOINT_FEATURES = 192
GAMMA = 0.1
STEPS = 60


class SoftDTW(nn.Module):
    """Soft dynamic time warping, evaluated one anti-diagonal at a time."""

    def __init__(self, gamma=1.0, normalize=False):
        super().__init__()
        self.gamma = gamma
        self.normalize = normalize

    @staticmethod
    def _pairwise(x, y):
        n, m, d = x.size(1), y.size(1), x.size(2)
        x = x.unsqueeze(2).expand(-1, n, m, d)
        y = y.unsqueeze(1).expand(-1, n, m, d)
        return torch.pow(x - y, 2).sum(3)

    def _accumulate(self, cost):
        b, n, m = cost.shape
        flipped = cost.flip(2)
        inf = float("inf")
        before = torch.full((b, n + 1), inf, device=cost.device)
        before[:, 0] = 0.0
        last = torch.full_like(before, inf)
        for k in range(n + m - 1):
            lo, hi = max(0, k - m + 1), min(k, n - 1) + 1
            diag = flipped.diagonal(offset=m - 1 - k, dim1=1, dim2=2)
            options = torch.stack([last[:, lo:hi], last[:, lo + 1:hi + 1], before[:, lo:hi]])
            best = -self.gamma * torch.logsumexp(-options / self.gamma, dim=0)
            before, last = last, F.pad(diag + best, (lo + 1, n - hi), value=inf)
        return last[:, n]

    def forward(self, x, y):
        xy = self._accumulate(self._pairwise(x, y))
        if not self.normalize:
            return xy
        xx = self._accumulate(self._pairwise(x, x))
        yy = self._accumulate(self._pairwise(y, y))
        return xy - 0.5 * (xx + yy)


class GaitForecaster(nn.Module):
    def __init__(self, features, hidden=384, layers=3):
        super().__init__()
        self.inp = nn.Linear(features, hidden)
        layer = nn.TransformerEncoderLayer(hidden, 6, hidden * 2, dropout=0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, layers)
        self.out = nn.Linear(hidden, features)

    def forward(self, x):
        return x + self.out(self.body(self.inp(x)))


class GaitWindows:
    """Past and future windows cut from recordings."""

    def __init__(self, recordings=8, length=2000):
        t = torch.linspace(0, 60, length).unsqueeze(1)
        freq = torch.linspace(0.5, 4.0, JOINT_FEATURES).unsqueeze(0)
        self.tracks = [torch.sin(t * freq + r) for r in range(recordings)]
        self.generator = torch.Generator().manual_seed(0)

    def sample(self, batch):
        past, future = [], []
        for _ in range(batch):
            track = self.tracks[int(torch.randint(len(self.tracks), (1,), generator=self.generator))]
            s = int(torch.randint(track.size(0) - 2 * FRAMES, (1,), generator=self.generator))
            past.append(track[s:s + FRAMES])
            future.append(track[s + FRAMES:s + 2 * FRAMES])
        return torch.stack(past), torch.stack(future)


def main():
    torch.manual_seed(0)
    device = "cuda"
    data = GaitWindows()
    net = GaitForecaster(JOINT_FEATURES).to(device)
    criterion = SoftDTW(gamma=GAMMA)
    opt = torch.optim.AdamW(net.parameters(), lr=3e-4)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, STEPS)

    running = 0.0
    for step in range(1, STEPS + 1):
        past, future = (t.to(device) for t in data.sample(BATCH))
        prediction = net(past)
        loss = criterion(prediction, future).mean() / FRAMES
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        sched.step()
        running += loss.item()
        if step % 15 == 0:
            print(f"step {step:3d}  soft-dtw {running / 15:.4f}  lr {sched.get_last_lr()[0]:.2e}")
            running = 0.0


if __name__ == "__main__":
    main()
