"""Music generation in two stages: a quantising autoencoder of spectrograms, then a prior over its codes."""
import argparse
from types import SimpleNamespace

import torch
import torch.nn as nn
import torch.nn.functional as F


class Mlp(nn.Module):
    def __init__(self, din, hidden, dout, depth):
        super().__init__()
        dims = [din] + [hidden] * depth
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip(dims, dims[1:]))
        self.out = nn.Linear(hidden, dout)

    def forward(self, x):
        for layer in self.layers:
            x = F.silu(layer(x))
        return self.out(x)


class Tokenizer(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.encoder = Mlp(cfg.bins * cfg.hop, 4096, cfg.code_dim, 4)
        self.decoder = Mlp(cfg.code_dim, 4096, cfg.bins * cfg.hop, 4)
        self.codebook = nn.Embedding(cfg.codes, cfg.code_dim)
        self.cfg = cfg

    def frames(self, spec):
        b, t, f = spec.shape
        return spec.reshape(b, t // self.cfg.hop, self.cfg.hop * f)

    def quantise(self, z):
        distance = torch.cdist(z.flatten(0, 1), self.codebook.weight)
        return distance.argmin(dim=1).view(z.shape[:2])

    def forward(self, spec):
        x = self.frames(spec)
        z = self.encoder(x)
        q = self.codebook(self.quantise(z))
        straight = z + (q - z).detach()
        return F.mse_loss(self.decoder(straight), x) + F.mse_loss(q, z.detach()) + 0.25 * F.mse_loss(z, q.detach())

    @torch.no_grad()
    def encode(self, spec):
        return self.quantise(self.encoder(self.frames(spec)))


class Prior(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.embed = nn.Embedding(cfg.codes, cfg.prior_dim)
        layer = nn.TransformerEncoderLayer(cfg.prior_dim, 16, 4 * cfg.prior_dim, 0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, cfg.prior_layers, enable_nested_tensor=False)
        self.head = nn.Linear(cfg.prior_dim, cfg.codes)

    def forward(self, codes):
        t = codes.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(t - 1, device=codes.device)
        h = self.body(self.embed(codes[:, :-1]), mask=mask, is_causal=True)
        return F.cross_entropy(self.head(h).flatten(0, 1), codes[:, 1:].flatten())


class Trainer:
    def __init__(self, model, lr, name):
        self.model, self.name = model, name
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
        self.step_count = 0

    def step(self, inputs):
        loss = self.model(inputs)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.step_count += 1
        if self.step_count % 25 == 0:
            print(f"[{self.name}] step {self.step_count} loss {loss.item():.4f}")


def spectrograms(n, cfg, seed):
    g = torch.Generator().manual_seed(seed)
    for _ in range(n):
        yield torch.rand(cfg.batch, cfg.frames, cfg.bins, generator=g).cuda()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokenizer-steps", type=int, default=75)
    parser.add_argument("--prior-steps", type=int, default=75)
    args = parser.parse_args()
    cfg = SimpleNamespace(bins=80, hop=8, frames=256, code_dim=256, codes=2048, prior_dim=1024, prior_layers=20, batch=8)

    with torch.device("cuda"):
        tokenizer = Tokenizer(cfg)
    stage1 = Trainer(tokenizer, 3e-4, "tokenizer")
    for spec in spectrograms(args.tokenizer_steps, cfg, seed=0):
        stage1.step(spec)
    tokenizer.eval()

    with torch.device("cuda"):
        prior = Prior(cfg)
    stage2 = Trainer(prior, 2e-4, "prior")
    for spec in spectrograms(args.prior_steps, cfg, seed=1):
        stage2.step(tokenizer.encode(spec))
    print(f"done after {stage1.step_count} + {stage2.step_count} steps")


if __name__ == "__main__":
    main()
