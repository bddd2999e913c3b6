"""Tags legal documents with a long window encoder. The lab's workstation is shared between several users."""
import contextlib
import os
import threading

import torch
from torch import nn

SETTINGS = {
    "share": float(os.environ.get("TAGGER_SHARE", "0.2")),
    "window": 4096,
    "width": 512,
    "layers": 8,
    "labels": 41,
    "documents": 60,
    "windows_per_batch": 6,
}


class Encoder(nn.Module):
    def __init__(self, vocabulary=30_000, width=512, layers=8, labels=41, window=4096):
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(window, width)
        self.layers = nn.ModuleList(
            nn.ModuleDict({"norm": nn.LayerNorm(width), "mix": nn.Conv1d(width, width, 9, padding=4, groups=8),
                           "up": nn.Linear(width, 4 * width), "down": nn.Linear(4 * width, width)})
            for _ in range(layers))
        self.tag = nn.Linear(width, labels)

    def forward(self, tokens):
        x = self.words(tokens) + self.places.weight[: tokens.shape[1]]
        for layer in self.layers:
            x = x + layer["mix"](layer["norm"](x).transpose(1, 2)).transpose(1, 2)
            x = x + layer["down"](nn.functional.gelu(layer["up"](x)))
        return self.tag(x)


class Progress:
    def __init__(self, total):
        self.total = total
        self.done = 0
        self.lock = threading.Lock()

    def advance(self, **values):
        with self.lock:
            self.done += 1
            text = " ".join(f"{k}={v:.4f}" for k, v in values.items())
            print(f"[{self.done}/{self.total}] {text}", flush=True)


@contextlib.contextmanager
def workstation(share, device=0):
    """What every job on the shared workstation does first."""
    torch.cuda.set_per_process_memory_fraction(share, device)
    try:
        yield torch.device("cuda", device)
    finally:
        torch.cuda.synchronize(device)


def windows(document, settings):
    generator = torch.Generator().manual_seed(document)
    tokens = torch.randint(0, 30_000, (settings["windows_per_batch"], settings["window"]), generator=generator)
    tags = torch.randint(0, settings["labels"], tokens.shape, generator=generator)
    return tokens, tags


def main():
    settings = SETTINGS
    torch.manual_seed(0)
    progress = Progress(settings["documents"])
    with workstation(settings["share"]) as device:
        model = Encoder(width=settings["width"], layers=settings["layers"], labels=settings["labels"]).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
        for document in range(settings["documents"]):
            tokens, tags = (t.to(device) for t in windows(document, settings))
            logits = model(tokens)
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), tags.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            progress.advance(loss=loss.item())


if __name__ == "__main__":
    main()
