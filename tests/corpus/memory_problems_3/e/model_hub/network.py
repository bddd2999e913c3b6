import torch
from torch import nn


class Translator(nn.Module):
    def __init__(self, vocab=16000, dim=512, layers=3):
        super().__init__()
        self.source = nn.Embedding(vocab, dim)
        self.target = nn.Embedding(vocab, dim)
        self.core = nn.Transformer(dim, 8, layers, layers, 2048, dropout=0.0, batch_first=True)
        self.out = nn.Linear(dim, vocab)

    @torch.inference_mode()
    def translate(self, ids, steps):
        memory = self.core.encoder(self.source(ids))
        tokens = torch.ones(ids.shape[0], 1, dtype=torch.long, device=ids.device)
        for _ in range(steps):
            h = self.core.decoder(self.target(tokens), memory)
            tokens = torch.cat([tokens, self.out(h[:, -1]).argmax(-1, keepdim=True)], dim=1)
        return tokens[:, 1:].cpu()
