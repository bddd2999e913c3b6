"""Builds a search index: encodes the documents, whitens the embeddings with the statistics of all of them, clusters them.

True cause: fragmentation. Per document a large feature map (6 MiB, needed until the statistics are known) and a small
embedding (1.5 MiB, kept) are allocated in turn and share segments; after `del features` gigabytes are free, but in holes
of some MiB between embeddings, and the points (192 MiB) and distances (768 MiB) fit in none.
The line: `embeddings.append(pooled)` (made by `pooled = self.pool(feature_map)`).
Cure: write the embeddings into one tensor made before the loop (torch.empty(n, ...)), or keep the feature maps on the
host. (expandable_segments:True alone does not help: its pages of 20 MiB are pinned in the same way.)
"""

import torch
from torch import nn

DOCUMENTS = 400
TOKENS, DIM = 1600, 1024
PARTS = 384


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20000, DIM)
        self.lift = nn.Linear(DIM, DIM)

    def forward(self, tokens):
        return torch.relu_(self.lift(self.embed(tokens)))


class IndexBuilder:
    def __init__(self, device):
        self.device = device
        self.encoder = Encoder().to(device).eval()

    def pool(self, feature_map):
        return nn.functional.adaptive_avg_pool1d(feature_map.T[None], PARTS)[0].T.contiguous()

    def encode(self, documents):
        features, embeddings = [], []
        for tokens in documents:
            feature_map = self.encoder(tokens.to(self.device))
            pooled = self.pool(feature_map)  # CAUSE
            features.append(feature_map)
            embeddings.append(pooled)  # CAUSE
        return features, embeddings

    def whiten(self, features, embeddings):
        mean = torch.zeros(DIM, device=self.device)
        square = torch.zeros(DIM, device=self.device)
        for feature_map in features:
            mean += feature_map.mean(0) / len(features)
            square += feature_map.square().mean(0) / len(features)
        scale = (square - mean.square()).clamp_(min=1e-6).rsqrt_()
        for embedding in embeddings:
            embedding.sub_(mean).mul_(scale)

    def cluster(self, embeddings, centroids=4096, iterations=5):
        centers = torch.randn(centroids, DIM, device=self.device)
        for _ in range(iterations):
            sums = torch.zeros_like(centers)
            for start in range(0, len(embeddings), 128):
                points = torch.cat(embeddings[start : start + 128])
                distances = torch.cdist(points, centers)
                sums.index_add_(0, distances.argmin(1), points)
                del points, distances
            centers = nn.functional.normalize(sums, dim=1)
        return centers


@torch.no_grad()
def main():
    torch.manual_seed(6)
    builder = IndexBuilder(torch.device("cuda"))
    documents = [torch.randint(0, 20000, (TOKENS,)) for _ in range(DOCUMENTS)]
    features, embeddings = builder.encode(documents)
    print(f"encoded {len(embeddings)} documents")
    builder.whiten(features, embeddings)
    del features
    print("whitened")
    centers = builder.cluster(embeddings)
    print("clustered", tuple(centers.shape))


if __name__ == "__main__":
    main()
