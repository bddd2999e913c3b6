"""Two metre temperature from a Bayesian emulator: draws from a SWAG posterior, verified with CRPS."""
import copy
import sys
import time

import numpy as np
import torch
import torch.nn as nn

CHANNELS, LATENT, TOKENS = 24, 2048, 384


class MixerBlock(nn.Module):
    def __init__(self, tokens, width):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.spatial = nn.Sequential(nn.Linear(tokens, 2 * tokens), nn.GELU(), nn.Linear(2 * tokens, tokens))
        self.channel = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.spatial(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channel(self.norm2(x))


class Emulator(nn.Module):
    def __init__(self, depth=6):
        super().__init__()
        self.lift = nn.Linear(CHANNELS * 16, LATENT)
        self.blocks = nn.Sequential(*[MixerBlock(TOKENS, LATENT) for _ in range(depth)])
        self.project = nn.Linear(LATENT, CHANNELS * 16)

    def forward(self, patches):
        return patches + self.project(self.blocks(self.lift(patches)))


class Posterior:
    """Diagonal SWAG posterior around the averaged weights."""

    def __init__(self, mean_net, scale=0.01):
        self.mean_net = mean_net
        self.scale = scale

    def draw(self, seed):
        net = copy.deepcopy(self.mean_net)
        gen = torch.Generator(device=next(net.parameters()).device).manual_seed(seed)
        with torch.no_grad():
            for p in net.parameters():
                p.add_(torch.randn(p.shape, generator=gen, device=p.device), alpha=self.scale)
        return net.eval()


class Analyses:
    """Initial states on a 0.75 degree band, patched 4x4, plus the verifying analysis."""

    def __init__(self, cases, lead_steps, seed):
        rng = np.random.default_rng(seed)
        self.start = rng.standard_normal((cases, TOKENS, CHANNELS * 16), dtype=np.float32)
        self.truth = rng.standard_normal((cases, TOKENS, 16), dtype=np.float32)
        self.lead_steps = lead_steps

    def batches(self, size):
        for i in range(0, len(self.start), size):
            yield torch.from_numpy(self.start[i:i + size])


def roll_out(net, state, steps):
    for _ in range(steps):
        state = net(state)
    return state[..., :16].float()


@torch.no_grad()
def forecast_members(posterior, analyses, device, members):
    fields = []
    with torch.autocast("cuda", dtype=torch.bfloat16):
        for m in range(members):
            began = time.time()
            net = posterior.draw(seed=1000 + m)
            member = [roll_out(net, s.to(device), analyses.lead_steps).cpu() for s in analyses.batches(8)]
            fields.append(torch.cat(member))
            del net
            print(f"member {m:2d} finished in {time.time() - began:.2f}s")
    return torch.stack(fields)


def crps(ensemble, truth):
    m = ensemble.shape[0]
    skill = (ensemble - truth).abs().mean(0)
    ordered, _ = ensemble.sort(dim=0)
    weight = torch.arange(1 - m, m, 2, dtype=ordered.dtype).view(-1, 1, 1, 1)
    spread = (weight * ordered).sum(0) / (m * m)
    return (skill - spread).mean().item()


def main(device):
    torch.manual_seed(21)
    with torch.device(device):
        mean_net = Emulator()
    size = sum(p.numel() for p in mean_net.parameters())
    print(f"emulator with {size / 1e6:.0f}M parameters")
    analyses = Analyses(cases=16, lead_steps=4, seed=21)
    ensemble = forecast_members(Posterior(mean_net), analyses, device, members=24)
    print(f"ensemble {tuple(ensemble.shape)}, CRPS {crps(ensemble, torch.from_numpy(analyses.truth)):.4f}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "cuda")
