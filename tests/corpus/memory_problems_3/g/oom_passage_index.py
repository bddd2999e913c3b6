"""Build a dense passage index on the GPU and answer queries by exact inner-product search."""
import argparse
import time

import torch
import torch.nn as nn


class PassageEncoder(nn.Module):
    def __init__(self, vocab=50_000, hidden=512, out=768):
        super().__init__()
        self.bag = nn.EmbeddingBag(vocab, hidden, mode="mean")
        self.proj = nn.Sequential(nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, out))

    def forward(self, ids):
        return nn.functional.normalize(self.proj(self.bag(ids)), dim=-1)


class Corpus:
    def __init__(self, passages, tokens=24, vocab=50_000):
        self.passages, self.tokens, self.vocab = passages, tokens, vocab

    def batches(self, size):
        gen = torch.Generator().manual_seed(1)
        template = torch.randint(0, self.vocab, (size, self.tokens), generator=gen)
        for start in range(0, self.passages, size):
            n = min(size, self.passages - start)
            yield (template[:n] + start) % self.vocab


class FlatIndex:
    def __init__(self, vectors):
        self.vectors = vectors

    @property
    def ntotal(self):
        return self.vectors.shape[0]

    def search(self, queries, k, block=262_144):
        best_scores, best_ids = None, None
        for start in range(0, self.ntotal, block):
            scores = queries @ self.vectors[start:start + block].T
            top = scores.topk(k, dim=1)
            ids = top.indices + start
            if best_scores is None:
                best_scores, best_ids = top.values, ids
                continue
            merged = torch.cat([best_scores, top.values], 1)
            pick = merged.topk(k, dim=1)
            best_scores = pick.values
            best_ids = torch.cat([best_ids, ids], 1).gather(1, pick.indices.clamp(0, 2 * k - 1))
        return best_scores, best_ids


@torch.inference_mode()
def embed_corpus(encoder, corpus, batch_size, device):
    embeddings = []
    start = time.time()
    for i, ids in enumerate(corpus.batches(batch_size)):
        embeddings.append(encoder(ids.to(device)))
        if i % 50 == 0:
            print(f"{(i + 1) * batch_size / 1e6:6.2f} M passages  {time.time() - start:5.1f} s", flush=True)
    return torch.cat(embeddings)


@torch.inference_mode()
def answer(encoder, index, n_queries, device):
    gen = torch.Generator().manual_seed(99)
    for batch in torch.randint(0, 50_000, (n_queries, 24), generator=gen).split(64):
        scores, ids = index.search(encoder(batch.to(device)), k=20)
        yield from ids.cpu()


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--passages", type=int, default=3_200_000)
    ap.add_argument("--batch-size", type=int, default=16_384)
    ap.add_argument("--queries", type=int, default=512)
    args = ap.parse_args()
    device = "cuda"
    encoder = PassageEncoder().to(device).eval()
    vectors = embed_corpus(encoder, Corpus(args.passages), args.batch_size, device)
    index = FlatIndex(vectors)
    print(f"index with {index.ntotal} vectors")
    hits = list(answer(encoder, index, args.queries, device))
    print(f"{len(hits)} queries answered")


if __name__ == "__main__":
    main()
