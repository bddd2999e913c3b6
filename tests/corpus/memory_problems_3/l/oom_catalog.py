"""Visual search for a furniture catalogue: fine-tune the encoder, index the gallery, query it."""
import sys
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class Residual(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(cout)
        self.conv2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(cout)
        self.skip = nn.Conv2d(cin, cout, 1, stride, bias=False) if stride != 1 or cin != cout else nn.Identity()

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.skip(x))


class Encoder(nn.Module):
    def __init__(self, dim=256):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 32, 7, 2, 3, bias=False), nn.BatchNorm2d(32), nn.ReLU(True))
        plan = [(32, 64, 2), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1)]
        self.stages = nn.Sequential(*[Residual(*p) for p in plan])
        self.embed = nn.Linear(256, dim)

    def forward(self, x):
        x = self.stages(self.stem(x)).mean((2, 3))
        return self.embed(x)


class Photos:
    """Product photos in batches; ids are catalogue numbers."""

    def __init__(self, count, batch_size, seed):
        self.count, self.batch_size = count, batch_size
        self.rng = np.random.default_rng(seed)
        self.ids = self.rng.permutation(count)

    def __len__(self):
        return (self.count + self.batch_size - 1) // self.batch_size

    def __iter__(self):
        for i in range(len(self)):
            n = min(self.batch_size, self.count - i * self.batch_size)
            yield torch.zeros(n, 3, 224, 224)


def contrastive(a, b, temperature=0.07):
    logits = F.normalize(a, dim=-1) @ F.normalize(b, dim=-1).T / temperature
    target = torch.arange(len(a), device=a.device)
    return 0.5 * (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target))


def finetune(model, photos, device, epochs):
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.05)
    model.train()
    for epoch in range(epochs):
        losses = []
        for batch in photos:
            batch = batch.to(device)
            shifted = torch.roll(batch, shifts=(4, -4), dims=(2, 3)).flip(3)
            loss = contrastive(model(batch), model(shifted))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        print(f"epoch {epoch}: loss {np.mean(losses):.4f}", flush=True)


def embeddings(model, photos, device):
    model.eval()
    with torch.no_grad():
        return (F.normalize(model(batch.to(device)), dim=-1) for batch in photos)


class GalleryIndex:
    def __init__(self, dim):
        self.dim = dim
        self.ids = None
        self.vectors = None

    def build(self, chunks, ids):
        parts = []
        for i, chunk in enumerate(chunks):
            parts.append(chunk)
            if i % 10 == 0:
                print(f"  indexed {sum(len(p) for p in parts)} photos", flush=True)
        self.vectors = torch.cat(parts)
        self.ids = ids
        return self

    def query(self, vectors, k=5):
        scores = vectors @ self.vectors.T
        best = scores.topk(k, dim=1).indices.cpu().numpy()
        return self.ids[best % len(self.ids)]


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    torch.manual_seed(11)
    model = Encoder().to(device)
    finetune(model, Photos(192, 48, seed=1), device, epochs=2)
    gallery, queries = Photos(2400, 64, seed=2), Photos(64, 32, seed=3)
    start = time.time()
    index = GalleryIndex(256).build(embeddings(model, gallery, device), gallery.ids)
    print(f"gallery of {len(index.ids)} indexed in {time.time() - start:.1f}s", flush=True)
    hits = [index.query(chunk) for chunk in embeddings(model, queries, device)]
    print("answers for", sum(len(h) for h in hits), "query photos", flush=True)


if __name__ == "__main__":
    main()
