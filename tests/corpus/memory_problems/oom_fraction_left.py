"""Embeds the pages of a document collection with a vision model; once shared its GPU with another service.

True cause: a limit set by the program itself, a quarter of the device, left from the time when two services shared it;
at the failure most of the device is free.
The line: `torch.cuda.set_per_process_memory_fraction(0.25, device)`.
Cure: remove the limit (or raise it to what the work needs, about half of the device); the batch may stay.
"""

import torch
from torch import nn


def setup_device(index=0):
    device = torch.device("cuda", index)
    torch.cuda.set_device(device)
    torch.backends.cuda.matmul.allow_tf32 = True
    # the search service runs on the same card
    torch.cuda.set_per_process_memory_fraction(0.25, device)  # CAUSE
    return device


class PageEncoder(nn.Module):
    def __init__(self, patch=16, dim=1024, layers=12):
        super().__init__()
        self.patchify = nn.Conv2d(3, dim, patch, stride=patch)
        layer = nn.TransformerEncoderLayer(dim, 16, 4 * dim, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.project = nn.Linear(dim, 256)

    def forward(self, pages):
        x = self.patchify(pages).flatten(2).transpose(1, 2)
        return nn.functional.normalize(self.project(self.encoder(x)), dim=-1)


def page_batches(count, batch_size):
    for start in range(0, count, batch_size):
        yield start, torch.zeros(min(batch_size, count - start), 3, 512, 512, dtype=torch.uint8)


def main():
    torch.manual_seed(8)
    device = setup_device()
    with device:
        model = PageEncoder()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for start, pages in page_batches(64, batch_size=8):
        pages = pages.to(device).float().div_(255)
        embedding = model(pages)
        similarity = embedding.mean(1) @ embedding.mean(1).T
        loss = nn.functional.cross_entropy(similarity / 0.07, torch.arange(len(pages), device=device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"pages {start}..{start + len(pages) - 1}: loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
