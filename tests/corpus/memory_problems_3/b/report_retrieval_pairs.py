"""Finds image pairs to match for structure from motion: every query image with its most similar database images."""
import argparse
import collections
import fnmatch
import random

import torch
from torch import nn


class GlobalDescriptor(nn.Module):
    """Pools a feature map to one vector per image."""

    def __init__(self, dim=512, p=3.0):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 32, 7, stride=4, padding=3), nn.ReLU(inplace=True),
            nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.ReLU(inplace=True))
        self.p = p
        self.whiten = nn.Linear(64, dim)

    def forward(self, image):
        x = self.stem(image).clamp(min=1e-6).pow(self.p).mean(dim=(2, 3)).pow(1 / self.p)
        return nn.functional.normalize(self.whiten(x), dim=-1)


class DescriptorStore:
    """Stands for the h5 file: descriptors by image name, on the CPU."""

    def __init__(self):
        self.data = collections.OrderedDict()

    def write(self, names, descriptors):
        for name, descriptor in zip(names, descriptors):
            self.data[name] = descriptor

    def names(self, pattern="*"):
        return [n for n in self.data if fnmatch.fnmatch(n, pattern)]

    def read(self, names):
        return torch.stack([self.data[n] for n in names])


@torch.no_grad()
def extract(model, names, store, device, batch=256):
    for begin in range(0, len(names), batch):
        chunk = names[begin:begin + batch]
        images = torch.zeros(len(chunk), 3, 224, 224, dtype=torch.uint8).to(device).float().div_(255)
        store.write(chunk, model(images).cpu())


def pairs_from_score_matrix(scores, invalid, num_select, min_score=None):
    if min_score is not None:
        invalid |= scores < min_score
    scores.masked_fill_(invalid, float("-inf"))
    top = torch.topk(scores, num_select, dim=1)
    indices = top.indices.cpu()
    valid = top.values.isfinite().cpu()
    return [(i, indices[i, j].item()) for i, j in valid.nonzero().tolist()]


def invalid_pairs(query_names, db_names):
    place = {name: j for j, name in enumerate(db_names)}
    rows = [(i, place[name]) for i, name in enumerate(query_names) if name in place]
    return rows


def pairs_from_retrieval(store, query_pattern, db_pattern, num_matched, device):
    query_names = store.names(query_pattern)
    db_names = store.names(db_pattern)
    if not query_names or not db_names:
        raise ValueError(f"no image for {query_pattern!r} or {db_pattern!r}")
    query_desc = store.read(query_names).to(device)
    db_desc = store.read(db_names).to(device)
    print(f"{len(query_names)} queries against {len(db_names)} images")
    sim = torch.einsum("id,jd->ij", query_desc, db_desc)
    invalid = torch.zeros(sim.shape, dtype=torch.bool, device=device)
    same = torch.tensor(invalid_pairs(query_names, db_names), dtype=torch.long).view(-1, 2).to(device)
    invalid[same[:, 0], same[:, 1]] = True
    pairs = pairs_from_score_matrix(sim, invalid, num_matched, min_score=0)
    return [(query_names[i], db_names[j]) for i, j in pairs]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mapping", type=int, default=46_000)
    parser.add_argument("--query", type=int, default=1_200)
    parser.add_argument("--num-matched", type=int, default=10)
    args = parser.parse_args()
    rng = random.Random(0)
    names = [f"mapping/seq{rng.randrange(40):02d}/{i:06d}.jpg" for i in range(args.mapping)]
    names += [f"query/phone/{i:05d}.jpg" for i in range(args.query)]
    device = "cuda"
    store = DescriptorStore()
    extract(GlobalDescriptor().to(device).eval(), names, store, device)
    for title, query_pattern in (("localisation", "query/*"), ("mapping", "mapping/*")):
        pairs = pairs_from_retrieval(store, query_pattern, "mapping/*", args.num_matched, device)
        print(f"{title}: {len(pairs)} pairs")


if __name__ == "__main__":
    main()
