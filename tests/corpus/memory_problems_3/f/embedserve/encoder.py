"""Sentence encoder used by the search endpoint."""
import torch
from torch import nn

_embeddings = {}


class Encoder(nn.Module):
    def __init__(self, vocab=20_000, dim=384, layers=2):
        super().__init__()
        self.tokens = nn.Embedding(vocab, dim)
        block = nn.TransformerEncoderLayer(dim, 6, 2 * dim, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)

    @torch.no_grad()
    def forward(self, ids):
        return self.layers(self.tokens(ids))


def tokenize(text, vocab=20_000):
    return [hash_word(w) % vocab for w in text.lower().split()]


def hash_word(word):
    value = 7
    for ch in word:
        value = (value * 31 + ord(ch)) & 0xFFFFFFFF
    return value


def token_embeddings(encoder, text, device):
    """Late interaction needs one vector a token, not only the pooled one."""
    found = _embeddings.get(text)
    if found is None:
        ids = torch.tensor([tokenize(text)], device=device)
        found = encoder(ids)[0]
        _embeddings[text] = found
    return found
