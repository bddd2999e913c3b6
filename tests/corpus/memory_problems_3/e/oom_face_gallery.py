"""Build the search gallery of a photo archive, then answer queries against it."""
import logging
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

EMBED = 512
SHARDS = 110
SHARD_SIZE = 16384
QUERIES = 20


def get_logger():
    logger = logging.getLogger("gallery")
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter("[%(levelname).1s] %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    return logger


class EmbeddingHead(nn.Module):
    """Maps stored backbone features to the normalised space in which faces are compared."""

    def __init__(self, din=256, dout=EMBED):
        super().__init__()
        self.fc1 = nn.Linear(din, dout)
        self.bn = nn.BatchNorm1d(dout)
        self.fc2 = nn.Linear(dout, dout)

    def forward(self, x):
        return F.normalize(self.fc2(F.relu(self.bn(self.fc1(x)))), dim=1)


class FeatureArchive:
    """Backbone features on disk, in shards; the features here stand for a memory-mapped file."""

    def __init__(self, shards, size, dim=256):
        self.shards = shards
        self.block = torch.zeros(size, dim)
        self.size = size

    def __len__(self):
        return self.shards

    def read(self, i):
        self.block[:, i % self.block.shape[1]] = 1.0
        ids = torch.arange(i * self.size, (i + 1) * self.size)
        return self.block, ids


class Gallery:
    def __init__(self, dim, device):
        self.vectors = torch.empty(0, dim, device=device)
        self.ids = torch.empty(0, dtype=torch.long)

    def add(self, vectors, ids):
        self.vectors = torch.cat([self.vectors, vectors], dim=0)
        self.ids = torch.cat([self.ids, ids], dim=0)

    def search(self, queries, k, block=131072):
        best_score = best_index = None
        for start in range(0, self.vectors.shape[0], block):
            scores = queries @ self.vectors[start:start + block].T
            top = scores.topk(min(k, scores.shape[1]), dim=1)
            index = top.indices + start
            if best_score is None:
                best_score, best_index = top.values, index
            else:
                merged = torch.cat([best_score, top.values], dim=1)
                best_score, pick = merged.topk(k, dim=1)
                best_index = torch.cat([best_index, index], dim=1).gather(1, pick)
        return best_score.cpu(), best_index.cpu()

    def __len__(self):
        return self.vectors.shape[0]


@torch.inference_mode()
def build(archive, head, device, logger):
    gallery = Gallery(EMBED, device)
    for i in range(len(archive)):
        features, ids = archive.read(i)
        gallery.add(head(features.to(device)), ids)
        if i % 20 == 0:
            logger.info("shard %d of %d, %d faces", i, len(archive), len(gallery))
    return gallery


@torch.inference_mode()
def main():
    logger = get_logger()
    device = torch.device("cuda")
    head = EmbeddingHead().to(device).eval()
    gallery = build(FeatureArchive(SHARDS, SHARD_SIZE), head, device, logger)
    for q in range(QUERIES):
        queries = head(torch.rand(32, 256).to(device))
        score, index = gallery.search(queries, k=10)
        logger.info("query batch %d: %s", q, tuple(index.shape))


if __name__ == "__main__":
    main()
