"""Composes short piano pieces event by event, a few pieces after one another."""
import torch
from torch import nn
import torch.nn.functional as F

EVENTS = 512
DEVICE = torch.device("cuda")


class Memory:
    """Keys and values of the events of one piece so far, in buffers that grow by a page at a time."""

    def __init__(self, layers, page=96):
        self.page = page
        self.buffers = [None] * layers
        self.lengths = [0] * layers

    def room(self, layer, like, needed):
        old = self.buffers[layer]
        if old is None or old.shape[3] < needed:
            pages = -(-needed // self.page)
            batch, heads, _, size = like.shape
            new = like.new_empty(2, batch, heads, pages * self.page, size)
            if old is not None:
                new[:, :, :, : old.shape[3]] = old
            self.buffers[layer] = new
        return self.buffers[layer]

    def extend(self, layer, key, value):
        start = self.lengths[layer]
        end = start + key.shape[2]
        both = self.room(layer, key, end)
        both[0, :, :, start:end] = key
        both[1, :, :, start:end] = value
        self.lengths[layer] = end
        return both[0, :, :, :end], both[1, :, :, :end]

    def __len__(self):
        return self.lengths[0]


class Attention(nn.Module):
    def __init__(self, width, heads, layer):
        super().__init__()
        self.heads, self.layer = heads, layer
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x, memory):
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        k, v = memory.extend(self.layer, k, v)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, length, width))


class Composer(nn.Module):
    def __init__(self, width=1024, depth=8, heads=16):
        super().__init__()
        self.events = nn.Embedding(EVENTS, width)
        self.attention = nn.ModuleList(Attention(width, heads, i) for i in range(depth))
        self.mlp = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
            for _ in range(depth))
        self.head = nn.Linear(width, EVENTS)
        self.depth = depth

    def forward(self, events, memory):
        x = self.events(events)
        for attention, mlp in zip(self.attention, self.mlp):
            x = x + attention(x, memory)
            x = x + mlp(x)
        return self.head(x[:, -1])


@torch.inference_mode()
def compose(model, style, length, variants, temperature=0.9):
    memory = Memory(model.depth)
    prompt = torch.full((variants, 16), style, dtype=torch.long).to(DEVICE)
    piece = [prompt]
    logits = model(prompt, memory)
    for _ in range(length):
        top = (logits / temperature).topk(8, dim=-1).indices
        choice = top[:, :1].clamp(0, EVENTS - 1)
        piece.append(choice)
        logits = model(choice, memory)
        if len(memory) % 128 == 0:
            print(f"  {len(memory)} events, {torch.cuda.memory_allocated() >> 20} MiB", flush=True)
    return torch.cat(piece, dim=1).cpu()


def main():
    torch.manual_seed(0)
    model = Composer().to(DEVICE).eval()
    album = []
    for style in range(5):
        print("piece", style)
        album.append(compose(model, style, length=384 - 16, variants=24))
    print("album", len(album), tuple(album[0].shape))


if __name__ == "__main__":
    main()
