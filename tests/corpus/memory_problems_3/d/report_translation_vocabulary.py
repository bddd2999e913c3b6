"""Word-level sequence-to-sequence training: dictionaries from the corpus, convolutional encoder and decoder."""
import random
from collections import Counter

import torch
import torch.nn.functional as F
from torch import nn


class Dictionary:
    def __init__(self):
        self.symbols = ["<pad>", "</s>", "<unk>"]
        self.indices = {symbol: index for index, symbol in enumerate(self.symbols)}
        self.count = Counter()

    def __len__(self):
        return len(self.symbols)

    def add_sentence(self, words):
        self.count.update(words)

    def finalize(self, threshold=0):
        for word, count in self.count.most_common():
            if count >= threshold and word not in self.indices:
                self.indices[word] = len(self.symbols)
                self.symbols.append(word)

    def encode(self, words):
        return [self.indices.get(word, 2) for word in words] + [1]


def crawl(sentences, seed, common=4_000, rare_share=0.35):
    """Sentences of a web corpus: frequent words, and names, numbers and misspellings that hardly come twice."""
    rng = random.Random(seed)
    for _ in range(sentences):
        words = []
        for _ in range(rng.randint(8, 24)):
            if rng.random() < rare_share:
                words.append(f"x{rng.randrange(10_000_000)}")
            else:
                words.append(f"w{int(common * rng.random() ** 3)}")
        yield words


class ConvStack(nn.Module):
    def __init__(self, width, layers, causal):
        super().__init__()
        self.pad = 2 if causal else 1
        self.convs = nn.ModuleList(nn.Conv1d(width, 2 * width, 3, padding=self.pad) for _ in range(layers))

    def forward(self, x):
        for conv in self.convs:
            x = x + F.glu(conv(x)[..., : x.shape[-1]], dim=1)
        return x


class FConvModel(nn.Module):
    def __init__(self, source, target, width=128, layers=3):
        super().__init__()
        self.source = nn.Embedding(source, width, padding_idx=0)
        self.target = nn.Embedding(target, width, padding_idx=0)
        self.encoder, self.decoder = ConvStack(width, layers, False), ConvStack(width, layers, True)
        self.fc_out = nn.Linear(width, target)

    def forward(self, source, previous):
        memory = self.encoder(self.source(source).transpose(1, 2))
        state = self.decoder(self.target(previous).transpose(1, 2))
        attention = torch.softmax(state.transpose(1, 2) @ memory, dim=-1)
        return self.fc_out(state.transpose(1, 2) + attention @ memory.transpose(1, 2))


class LabelSmoothedCrossEntropy:
    def __init__(self, epsilon):
        self.epsilon = epsilon

    def __call__(self, logits, target):
        lprobs = F.log_softmax(logits, dim=-1).flatten(0, 1)
        target = target.flatten()
        nll = -lprobs.gather(1, target.unsqueeze(1)).squeeze(1)
        smooth = -lprobs.mean(dim=1)
        mask = target.ne(0)
        return ((1 - self.epsilon) * nll + self.epsilon * smooth)[mask].mean()


def batches(pairs, max_tokens, rng):
    """Batches of similar length with at most max_tokens target tokens."""
    pairs = sorted(pairs, key=lambda pair: len(pair[1]))
    groups, group = [], []
    for pair in pairs:
        if group and (len(group) + 1) * len(pair[1]) > max_tokens:
            groups.append(group)
            group = []
        group.append(pair)
    rng.shuffle(groups)
    for group in groups:
        yield [nn.utils.rnn.pad_sequence([torch.tensor(p[side]) for p in group], batch_first=True).cuda() for side in (0, 1)]


def main():
    rng = random.Random(0)
    corpus = list(zip(crawl(12_000, seed=1), crawl(12_000, seed=2)))
    source_dict, target_dict = Dictionary(), Dictionary()
    for source, target in corpus:
        source_dict.add_sentence(source)
        target_dict.add_sentence(target)
    source_dict.finalize(threshold=5)
    target_dict.finalize()
    pairs = [(source_dict.encode(s), target_dict.encode(t)) for s, t in corpus[:1500]]
    model = FConvModel(len(source_dict), len(target_dict)).cuda()
    criterion = LabelSmoothedCrossEntropy(0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25, momentum=0.99, nesterov=True)
    print(f"dictionaries {len(source_dict)} {len(target_dict)}, model {torch.cuda.memory_allocated() / 2**20:.0f} MiB")
    for index, (source, target) in enumerate(batches(pairs, 600, rng)):
        previous = F.pad(target, (1, 0), value=1)[:, :-1]
        loss = criterion(model(source, previous), target)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        if index % 10 == 0:
            print(f"batch {index} loss {loss.item():.3f} peak {torch.cuda.max_memory_allocated() / 2**20:.0f} MiB")


if __name__ == "__main__":
    main()
