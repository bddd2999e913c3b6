"""Infer regulatory relations between genes from expression time courses (neural relational inference)."""
import argparse
import time

import torch
import torch.nn.functional as F

from relnet.modules import MLPDecoder, MLPEncoder
from relnet.utils import gumbel_softmax, kl_categorical_uniform, relation_matrices

parser = argparse.ArgumentParser()
parser.add_argument("--num-genes", type=int, default=420)
parser.add_argument("--timesteps", type=int, default=24)
parser.add_argument("--dims", type=int, default=2, help="spliced and unspliced counts")
parser.add_argument("--hidden", type=int, default=24)
parser.add_argument("--edge-types", type=int, default=2)
parser.add_argument("--steps", type=int, default=90)
parser.add_argument("--temp", type=float, default=0.5)
parser.add_argument("--var", type=float, default=5e-3)
parser.add_argument("--device", default="cuda")


def expression_batches(args):
    gen = torch.Generator().manual_seed(42)
    for _ in range(args.steps):
        noise = torch.randn(1, args.num_genes, args.timesteps, args.dims, generator=gen)
        yield noise.cumsum(2) * 0.1


def nll_gaussian(preds, target, variance):
    return ((preds - target) ** 2 / (2 * variance)).sum() / (target.size(0) * target.size(1))


def train_step(encoder, decoder, optimizer, data, relations, args):
    rel_rec, rel_send = relations
    logits = encoder(data, rel_rec, rel_send)
    edges = gumbel_softmax(logits, args.temp)
    prob = F.softmax(logits, -1)
    t = torch.randint(0, args.timesteps - 1, (1,)).item()
    output = decoder(data[:, :, t], edges, rel_rec, rel_send)
    nll = nll_gaussian(output, data[:, :, t + 1], args.var)
    kl = kl_categorical_uniform(prob, args.num_genes)
    optimizer.zero_grad()
    (nll + kl).backward()
    optimizer.step()
    return nll.detach(), kl.detach()


def main():
    args = parser.parse_args()
    torch.manual_seed(42)
    relations = relation_matrices(args.num_genes, args.device)
    encoder = MLPEncoder(args.timesteps * args.dims, args.hidden, args.edge_types).to(args.device)
    decoder = MLPDecoder(args.dims, args.edge_types, args.hidden).to(args.device)
    optimizer = torch.optim.Adam(list(encoder.parameters()) + list(decoder.parameters()), lr=5e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=200, gamma=0.5)

    t = time.time()
    for step, data in enumerate(expression_batches(args)):
        nll, kl = train_step(encoder, decoder, optimizer, data.to(args.device), relations, args)
        scheduler.step()
        if step % 30 == 0:
            print(f"Step: {step:04d} nll_train: {nll.item():.6f} kl_train: {kl.item():.6f} time: {time.time() - t:.2f}s")


if __name__ == "__main__":
    main()
