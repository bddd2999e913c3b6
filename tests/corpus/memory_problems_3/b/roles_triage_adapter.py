"""Low-rank adaptation of an encoder in half precision for the triage of emergency calls."""
import torch
from torch import nn
import torch.nn.functional as F


class LowRank(nn.Module):
    def __init__(self, base, rank, scale=2.0):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, base.in_features) * 0.01)
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))
        self.scale = scale

    def forward(self, x):
        low = F.linear(F.linear(x.float(), self.down), self.up)
        return self.base(x) + (self.scale * low).to(x.dtype)


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.mix = nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def split(self, x):
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(self, x):
        y = self.norm1(x)
        q, k, v = self.split(self.query(y)), self.split(self.key(y)), self.split(self.value(y))
        x = x + self.mix(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.narrow(F.gelu(self.wide(self.norm2(x))))


class TriageEncoder(nn.Module):
    def __init__(self, width=1024, depth=10, heads=16, urgencies=5):
        super().__init__()
        self.words = nn.Embedding(32_000, width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(depth))
        self.urgency = nn.Linear(width, urgencies)

    def forward(self, ids):
        x = self.words(ids)
        for layer in self.layers:
            x = layer(x)
        return self.urgency(x.mean(dim=1)).float()


def adapt(model, rank):
    model.requires_grad_(False)
    for layer in model.layers:
        for name in ("query", "value", "wide"):
            setattr(layer, name, LowRank(getattr(layer, name), rank))
    model.urgency.float().requires_grad_(True)
    model.urgency.register_forward_pre_hook(lambda module, args: (args[0].float(),))
    return model


def main(rank=64, steps=60, batch=16):
    torch.manual_seed(0)
    model = adapt(TriageEncoder().half(), rank).cuda()
    trained = [p for p in model.parameters() if p.requires_grad]
    print(f"training {sum(p.numel() for p in trained) / 1e6:.1f}M of "
          f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f}M parameters")
    optimizer = torch.optim.AdamW(trained, lr=2e-4, fused=True)
    generator = torch.Generator().manual_seed(1)
    for step in range(1, steps + 1):
        ids = torch.randint(0, 32_000, (batch, 256), generator=generator).cuda()
        urgency = torch.randint(0, 5, (batch,), generator=generator).cuda()
        loss = F.cross_entropy(model(ids), urgency)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 20 == 0:
            print(f"call batch {step} loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
