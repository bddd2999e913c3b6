import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self, n_mels=80, width=384, layers=4):
        super().__init__()
        self.conv1 = nn.Conv1d(n_mels, width, 3, padding=1)
        self.conv2 = nn.Conv1d(width, width, 3, stride=2, padding=1)
        layer = nn.TransformerEncoderLayer(width, 6, 4 * width, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, mel):
        x = torch.relu(self.conv2(torch.relu(self.conv1(mel))))
        return self.layers(x.transpose(1, 2))


class CrossCache:
    def __init__(self, states, projections):
        self.keys = [k(states) for k, _ in projections]
        self.values = [v(states) for _, v in projections]


class Decoder(nn.Module):
    def __init__(self, vocab=8000, width=384, layers=4):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.cross = nn.ModuleList([nn.ModuleList([nn.Linear(width, width), nn.Linear(width, width)]) for _ in range(layers)])
        self.query = nn.ModuleList([nn.Linear(width, width) for _ in range(layers)])
        self.out = nn.Linear(width, vocab, bias=False)

    def prepare(self, states):
        return CrossCache(states, self.cross)

    def step(self, tokens, cache):
        x = self.embed(tokens[:, -1:])
        for q, k, v in zip(self.query, cache.keys, cache.values):
            att = (q(x) @ k.transpose(1, 2) / k.shape[-1] ** 0.5).softmax(-1)
            x = x + att @ v
        return self.out(x[:, -1])
