"""Worker that reads fields from scanned invoices; broken scans are reported at the end."""
import collections
import dataclasses
import random
import sys

import torch
import torch.nn as nn


@dataclasses.dataclass
class Scan:
    number: int
    width: int
    height: int
    pages: int
    declared_total: float


class PageTooNoisy(RuntimeError):
    pass


class FieldReader(nn.Module):
    FIELDS = ("supplier", "date", "net", "vat", "total", "iban")

    def __init__(self, width=32):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, width, 5, stride=4, padding=2), nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, stride=2, padding=1), nn.ReLU())
        self.heads = nn.ModuleDict({f: nn.Linear(2 * width, 64) for f in self.FIELDS})

    def forward(self, pages):
        maps = self.encoder(pages)
        pooled = maps.mean((2, 3))
        return maps, {f: head(pooled) for f, head in self.heads.items()}


class Worker:
    def __init__(self):
        self.model = FieldReader().cuda().eval()
        self.done = collections.Counter()
        self.failed = []

    def load(self, scan):
        return torch.rand(scan.pages, 1, scan.height, scan.width)

    def check_totals(self, scan, fields):
        if scan.declared_total <= 0:
            raise PageTooNoisy(f"scan {scan.number}: no readable total on {scan.pages} pages")
        return {name: value.argmax(-1).cpu().tolist() for name, value in fields.items()}

    @torch.no_grad()
    def process(self, scan):
        pages = self.load(scan).cuda()
        pages = (pages - 0.5) / 0.25
        maps, fields = self.model(pages)
        fields["total"] = fields["total"] + maps.amax((2, 3)).mean(-1, keepdim=True)
        return self.check_totals(scan, fields)

    def run(self, scans):
        for scan in scans:
            try:
                result = self.process(scan)
                self.done["ok"] += 1
                self.done["values"] += sum(len(v) for v in result.values())
            except PageTooNoisy as error:
                self.done["failed"] += 1
                self.failed.append(error)

    def summary(self, out=sys.stdout):
        out.write(f"processed {self.done['ok']}, values {self.done['values']}\n")
        for error in self.failed[:5]:
            out.write(f"  {type(error).__name__}: {error}\n")
        if len(self.failed) > 5:
            out.write(f"  and {len(self.failed) - 5} more\n")


def inbox(n, seed=12):
    rng = random.Random(seed)
    for i in range(n):
        noisy = rng.random() < 0.3
        yield Scan(i, 496, 702, rng.randint(1, 3), -1.0 if noisy else rng.uniform(10, 5000))


def main():
    torch.manual_seed(0)
    worker = Worker()
    worker.run(inbox(220))
    worker.summary()


if __name__ == "__main__":
    main()
