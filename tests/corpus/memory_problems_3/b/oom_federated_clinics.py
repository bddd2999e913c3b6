"""Simulates federated training of a chest X-ray model between clinics on one card."""
import argparse
import random

import torch

from federated_core import Clinic, XrayNet, average


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--clinics", type=int, default=60)
    parser.add_argument("--per-round", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--seed", type=int, default=4)
    return parser.parse_args([])


def build_population(args):
    rng = random.Random(args.seed)
    return [Clinic(f"clinic-{number:02d}", rng.choice([32, 48, 64]), args.seed + number)
            for number in range(args.clinics)]


@torch.inference_mode()
def check(model, device):
    model.eval()
    x = torch.rand(16, 1, 224, 224).to(device)
    return model(x).sigmoid().mean().item()


def run_round(number, model, population, args, rng, device):
    chosen = rng.sample(population, args.per_round)
    losses = []
    for clinic in chosen:
        clinic.receive(model, args.lr * 0.97 ** number)
        losses.append(clinic.local_epoch(args.batch_size, device))
    average(model, chosen)
    return sum(losses) / len(losses), [c.name for c in chosen]


def main():
    args = parse()
    torch.manual_seed(args.seed)
    rng = random.Random(args.seed)
    device = torch.device("cuda")
    model = XrayNet().to(device)
    population = build_population(args)
    for number in range(args.rounds):
        loss, names = run_round(number, model, population, args, rng, device)
        print(f"round {number:2d} loss {loss:.4f} mean {check(model, device):.3f} {' '.join(names)}", flush=True)


if __name__ == "__main__":
    main()
