"""Class-conditional diffusion model for handwritten glyphs: short training, then a sample sheet."""
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

CLASSES = 10
SIZE = 28
TIMESTEPS = 120
TRAIN_STEPS = 60
BATCH = 64


def ddpm_schedule(beta_start, beta_end, steps):
    beta = torch.linspace(beta_start, beta_end, steps + 1)
    alpha = 1 - beta
    alpha_bar = torch.cumprod(alpha, dim=0)
    return {
        "inv_sqrt_alpha": alpha.rsqrt(),
        "noise_scale": beta / (1 - alpha_bar).sqrt(),
        "sigma": beta.sqrt(),
        "sqrt_alpha_bar": alpha_bar.sqrt(),
        "sqrt_one_minus": (1 - alpha_bar).sqrt(),
    }


class ContextUnet(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, padding=1)
        self.down = nn.Conv2d(width, 2 * width, 4, stride=2, padding=1)
        self.middle = nn.Conv2d(2 * width, 2 * width, 3, padding=1)
        self.up = nn.ConvTranspose2d(2 * width, width, 4, stride=2, padding=1)
        self.out = nn.Conv2d(2 * width, 1, 3, padding=1)
        self.embed_class = nn.Embedding(CLASSES, 2 * width)
        self.embed_time = nn.Sequential(nn.Linear(1, 2 * width), nn.GELU(),
                                        nn.Linear(2 * width, 2 * width))

    def forward(self, x, label, t, context_mask):
        first = F.gelu(self.stem(x))
        hidden = F.gelu(self.down(first))
        context = self.embed_class(label) * (1 - context_mask)[:, None]
        hidden = hidden + context[:, :, None, None] + self.embed_time(t)[:, :, None, None]
        hidden = F.gelu(self.middle(hidden))
        return self.out(torch.cat([F.gelu(self.up(hidden)), first], dim=1))


class DDPM(nn.Module):
    def __init__(self, net, steps=TIMESTEPS, drop_prob=0.1):
        super().__init__()
        self.net = net
        self.steps = steps
        self.drop_prob = drop_prob
        for name, value in ddpm_schedule(1e-4, 0.02, steps).items():
            self.register_buffer(name, value)

    def forward(self, x, label):
        t = torch.randint(1, self.steps + 1, (x.shape[0],)).to(x.device)
        noise = torch.randn_like(x)
        keep = self.sqrt_alpha_bar.index_select(0, t)[:, None, None, None]
        spread = self.sqrt_one_minus.index_select(0, t)[:, None, None, None]
        mask = (torch.rand(x.shape[0], device=x.device) < self.drop_prob).float()
        predicted = self.net(keep * x + spread * noise, label, t[:, None] / self.steps, mask)
        return F.mse_loss(predicted, noise)

    def sample(self, per_class, guidance, device):
        count = per_class * CLASSES
        x = torch.randn(count, 1, SIZE, SIZE, device=device)
        label = torch.arange(CLASSES, device=device).repeat(per_class)
        label = label.repeat(2)
        mask = torch.zeros(2 * count, device=device)
        mask[count:] = 1.0
        for step in range(self.steps, 0, -1):
            t = torch.full((2 * count, 1), step / self.steps, device=device)
            eps = self.net(x.repeat(2, 1, 1, 1), label, t, mask)
            conditional, free = eps[:count], eps[count:]
            eps = (1 + guidance) * conditional - guidance * free
            z = torch.randn_like(x) if step > 1 else torch.zeros_like(x)
            x = self.inv_sqrt_alpha[step] * (x - eps * self.noise_scale[step])
            x = x + self.sigma[step] * z
        return x


def train(model, device):
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-4)
    gen = torch.Generator().manual_seed(1)
    for step in range(TRAIN_STEPS):
        glyphs = torch.rand(BATCH, 1, SIZE, SIZE, generator=gen).to(device)
        label = torch.randint(0, CLASSES, (BATCH,), generator=gen).to(device)
        optimizer.zero_grad()
        loss = model(glyphs, label)
        loss.backward()
        optimizer.step()
    print(f"trained, last loss {loss.item():.4f}")


def sample_sheet(model, device):
    model.eval()
    glyphs = model.sample(per_class=2, guidance=0.5, device=device)
    return glyphs.detach().clamp(-1, 1).cpu()


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    torch.manual_seed(0)
    model = DDPM(ContextUnet()).to(device)
    train(model, device)
    print("sample sheet", tuple(sample_sheet(model, device).shape))


if __name__ == "__main__":
    main()
