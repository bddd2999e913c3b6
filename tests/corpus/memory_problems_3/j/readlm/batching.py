import numpy as np
import torch
from torch.utils.data import Dataset, Sampler

BASES = 5


class ReadDataset(Dataset):
    """Reads from a mixed run: mostly short fragments, a few long ones."""

    def __init__(self, n_reads, n_taxa, seed):
        rng = np.random.default_rng(seed)
        lengths = rng.normal(260, 50, n_reads).clip(80, 480)
        long_reads = rng.choice(n_reads, max(1, n_reads // 1500), replace=False)
        lengths[long_reads] = rng.uniform(14_000, 19_000, len(long_reads))
        self.lengths = lengths.astype(int)
        self.taxa = rng.integers(0, n_taxa, n_reads)
        self.seed = seed

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        rng = np.random.default_rng((self.seed, index))
        read = rng.integers(1, BASES, self.lengths[index])
        return torch.from_numpy(read), int(self.taxa[index])


class TokenBudgetSampler(Sampler):
    """Random batches with about the same number of bases in each."""

    def __init__(self, lengths, max_tokens, seed):
        self.lengths, self.max_tokens = lengths, max_tokens
        self.rng = np.random.default_rng(seed)

    def __iter__(self):
        batch, tokens = [], 0
        for index in self.rng.permutation(len(self.lengths)):
            length = self.lengths[index]
            if batch and tokens + length > self.max_tokens:
                yield batch
                batch, tokens = [], 0
            batch.append(int(index))
            tokens += length
        if batch:
            yield batch


def collate(items):
    reads, taxa = zip(*items)
    padded = torch.nn.utils.rnn.pad_sequence(reads, batch_first=True)
    lengths = torch.tensor([len(read) for read in reads])
    return padded, lengths, torch.tensor(taxa)
