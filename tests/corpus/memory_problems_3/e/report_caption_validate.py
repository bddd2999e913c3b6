"""Image captioning with soft attention: train for an epoch, validate, report top-5 accuracy."""
import argparse
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class CaptionDataset(Dataset):
    def __init__(self, split, n, vocab, max_len=20):
        self.split, self.n, self.vocab, self.max_len = split, n, vocab, max_len

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        image = torch.rand(3, 56, 56, generator=g)
        caption = torch.randint(1, self.vocab, (self.max_len,), generator=g)
        return image, caption


class Encoder(nn.Module):
    """Frozen convolutional trunk that yields a 14x14 grid of features."""

    def __init__(self, dim=512):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(3, 64, 3, stride=2, padding=1), nn.ReLU(),
            nn.Conv2d(64, dim, 3, stride=2, padding=1), nn.ReLU(),
        )
        for p in self.parameters():
            p.requires_grad = False

    def forward(self, images):
        out = self.trunk(images)
        return out.flatten(2).transpose(1, 2)


class Attention(nn.Module):
    def __init__(self, enc_dim, dec_dim, att_dim):
        super().__init__()
        self.enc_att = nn.Linear(enc_dim, att_dim)
        self.dec_att = nn.Linear(dec_dim, att_dim)
        self.full_att = nn.Linear(att_dim, 1)

    def forward(self, enc, h):
        att = torch.tanh(self.enc_att(enc) + self.dec_att(h).unsqueeze(1))
        alpha = self.full_att(att).squeeze(2).softmax(dim=1)
        return (enc * alpha.unsqueeze(2)).sum(dim=1), alpha


class Decoder(nn.Module):
    def __init__(self, vocab, enc_dim=512, emb=256, hidden=512, att=384):
        super().__init__()
        self.vocab = vocab
        self.attention = Attention(enc_dim, hidden, att)
        self.embedding = nn.Embedding(vocab, emb)
        self.cell = nn.LSTMCell(emb + enc_dim, hidden)
        self.init_h = nn.Linear(enc_dim, hidden)
        self.init_c = nn.Linear(enc_dim, hidden)
        self.fc = nn.Linear(hidden, vocab)

    def forward(self, enc, captions):
        mean = enc.mean(dim=1)
        h, c = self.init_h(mean), self.init_c(mean)
        words = self.embedding(captions)
        scores, alphas = [], []
        for t in range(captions.size(1) - 1):
            context, alpha = self.attention(enc, h)
            h, c = self.cell(torch.cat([words[:, t], context], dim=1), (h, c))
            scores.append(self.fc(h))
            alphas.append(alpha)
        return torch.stack(scores, dim=1), torch.stack(alphas, dim=1)


class AverageMeter:
    def __init__(self):
        self.sum, self.count = 0.0, 0

    def update(self, value, n=1):
        self.sum += value * n
        self.count += n

    @property
    def avg(self):
        return self.sum / max(1, self.count)


def accuracy(scores, targets, k):
    top = scores.topk(k, dim=1).indices
    return top.eq(targets.view(-1, 1)).float().sum().item() * 100.0 / targets.numel()


def train(loader, encoder, decoder, optimizer, epoch, args):
    decoder.train()
    losses, start = AverageMeter(), time.time()
    for i, (imgs, caps) in enumerate(loader):
        imgs, caps = imgs.to(device), caps.to(device)
        feats = encoder(imgs)
        scores, alphas = decoder(feats, caps)
        loss = F.cross_entropy(scores.flatten(0, 1), caps[:, 1:].flatten())
        loss = loss + args.alpha_c * ((1.0 - alphas.sum(dim=1)) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(decoder.parameters(), 5.0)
        optimizer.step()
        losses.update(loss.item(), imgs.size(0))
        if i % args.print_freq == 0:
            print(f"epoch {epoch} [{i}/{len(loader)}] loss {losses.avg:.4f} {time.time() - start:.1f}s")


def validate(loader, encoder, decoder, args):
    decoder.eval()
    encoder.eval()
    losses, top5 = AverageMeter(), AverageMeter()
    for i, (imgs, caps) in enumerate(loader):
        imgs, caps = imgs.to(device), caps.to(device)
        feats = encoder(imgs)
        scores, alphas = decoder(feats, caps)
        scores_copy = scores.clone()
        targets = caps[:, 1:]
        loss = F.cross_entropy(scores.flatten(0, 1), targets.flatten())
        loss += args.alpha_c * ((1.0 - alphas.sum(dim=1)) ** 2).mean()
        losses.update(loss.item(), imgs.size(0))
        top5.update(accuracy(scores_copy.flatten(0, 1), targets.flatten(), 5))
    print(f" * loss {losses.avg:.3f}, top-5 accuracy {top5.avg:.3f}")
    return losses.avg


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=48)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--vocab", type=int, default=6000)
    parser.add_argument("--alpha-c", type=float, default=1.0)
    parser.add_argument("--print-freq", type=int, default=20)
    args = parser.parse_args()

    train_loader = DataLoader(CaptionDataset("train", 48 * 40, args.vocab), args.batch_size, shuffle=True)
    val_loader = DataLoader(CaptionDataset("val", 48 * 15, args.vocab), args.batch_size)
    encoder, decoder = Encoder().to(device), Decoder(args.vocab).to(device)
    optimizer = torch.optim.Adam(decoder.parameters(), lr=4e-4)
    for epoch in range(args.epochs):
        train(train_loader, encoder, decoder, optimizer, epoch, args)
        validate(val_loader, encoder, decoder, args)


if __name__ == "__main__":
    main()
