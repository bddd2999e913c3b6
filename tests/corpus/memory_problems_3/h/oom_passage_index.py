"""Embed a passage collection and build a dense retrieval index on the GPU."""
import logging
import random
import sys

import torch

from passage_index import EncoderConfig, FlatIndex, PassageEncoder

log = logging.getLogger("index")

NUM_PASSAGES = 9600
BATCH_SIZE = 64
MAX_LENGTH = 512


def tokenized_passages(seed=13):
    rng = random.Random(seed)
    for pid in range(NUM_PASSAGES):
        yield pid, rng.randint(180, MAX_LENGTH)


def batches(rows, batch_size):
    bucket = []
    for row in rows:
        bucket.append(row)
        if len(bucket) == batch_size:
            yield bucket
            bucket = []
    if bucket:
        yield bucket


def collate(rows, vocab_size):
    ids = [pid for pid, _ in rows]
    lengths = torch.tensor([n for _, n in rows])
    tokens = torch.randint(5, vocab_size, (len(rows), MAX_LENGTH))
    mask = torch.arange(MAX_LENGTH)[None, :] < lengths[:, None]
    return ids, tokens.masked_fill(~mask, 0), mask


def build_index(encoder, device):
    index = FlatIndex()
    for step, rows in enumerate(batches(tokenized_passages(), BATCH_SIZE)):
        ids, tokens, mask = collate(rows, encoder.cfg.vocab_size)
        vectors = encoder.embed(tokens.to(device), mask.to(device))
        index.add(ids, vectors)
        if step % 20 == 0:
            log.info("embedded %d passages", len(index))
    index.finalize()
    return index


def main():
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    torch.manual_seed(0)
    cfg = EncoderConfig(max_length=MAX_LENGTH)
    with device:
        encoder = PassageEncoder(cfg).eval()

    index = build_index(encoder, device)
    log.info("index holds %d vectors of size %d", *index.vectors.shape)

    query_ids = torch.randint(5, cfg.vocab_size, (16, 64), device=device)
    query_mask = torch.ones_like(query_ids, dtype=torch.bool)
    scores, hits = index.search(encoder.embed(query_ids, query_mask))
    log.info("search result: %s", tuple(hits.shape))


if __name__ == "__main__":
    main()
