"""Trains an unrolled network for accelerated brain MRI."""
import argparse

import torch

from cartesian.acquisition import coil_maps, phantom, sampling_mask
from cartesian.network import UnrolledRecon
from cartesian.operators import SenseOperator


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("device", nargs="?", default="cuda")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--slices", type=int, default=6)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--coils", type=int, default=16)
    return parser.parse_args()


def undersample(target, maps, mask, noise, generator):
    kspace = torch.fft.fft2(maps * target, norm="ortho") * mask
    grain = torch.randn(kspace.shape[-2:], generator=generator) * noise
    return kspace + grain.to(kspace.device) * mask


def train_epoch(model, optimizer, sense, volumes, args, generator):
    running = 0.0
    for target in volumes:
        target = target.to(args.device)
        kspace = undersample(target, sense.maps, sense.mask, 0.01, generator)
        recon = model(kspace, sense)
        loss = (recon - target).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        running += loss.item()
    return running / args.slices


@torch.no_grad()
def validate(model, sense, args, generator):
    model.eval()
    target = phantom(2, args.size, generator).to(args.device)
    recon = model(undersample(target, sense.maps, sense.mask, 0.01, generator), sense)
    error = (recon - target).abs().square().mean()
    model.train()
    return (-10 * torch.log10(error + 1e-8)).item()


def main():
    args = parse()
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(5)
    sense = SenseOperator(
        coil_maps(args.coils, args.size).to(args.device),
        sampling_mask(args.size, 4, generator).to(args.device),
    )
    model = UnrolledRecon().to(args.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    volumes = [phantom(2, args.size, generator) for _ in range(args.slices)]
    for epoch in range(args.epochs):
        loss = train_epoch(model, optimizer, sense, volumes, args, generator)
        psnr = validate(model, sense, args, generator)
        print(f"epoch {epoch}: l1 {loss:.4f}  psnr {psnr:.2f} dB", flush=True)
    print("finished")


if __name__ == "__main__":
    main()
