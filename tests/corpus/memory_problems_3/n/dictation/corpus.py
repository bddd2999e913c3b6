from dataclasses import dataclass

import numpy as np
import torch

MELS = 80
VOCAB = 48


@dataclass
class Utterance:
    key: str
    frames: int
    tokens: int


def build_manifest(count, seed):
    rng = np.random.default_rng(seed)
    items = []
    for i in range(count):
        tokens = int(np.clip(rng.lognormal(3.2, 0.5), 4, 120))
        rate = rng.normal(14.0, 1.5)
        frames = int(tokens * max(rate, 9.0)) + 30
        if i % 150 == 97:
            frames = int(rng.integers(5200, 6400))
        items.append(Utterance(f"dict-{i:05d}", frames, tokens))
    return items


class DictationSet(torch.utils.data.Dataset):
    def __init__(self, manifest):
        self.manifest = manifest

    def __len__(self):
        return len(self.manifest)

    def __getitem__(self, index):
        utt = self.manifest[index]
        generator = torch.Generator().manual_seed(index)
        features = torch.randn(utt.frames, MELS, generator=generator)
        labels = torch.randint(1, VOCAB, (utt.tokens,), generator=generator)
        return features, labels


def collate(items):
    features, labels = zip(*items)
    feature_lengths = torch.tensor([f.shape[0] for f in features])
    label_lengths = torch.tensor([t.shape[0] for t in labels])
    return (
        torch.nn.utils.rnn.pad_sequence(features, batch_first=True),
        feature_lengths,
        torch.nn.utils.rnn.pad_sequence(labels, batch_first=True),
        label_lengths,
    )
