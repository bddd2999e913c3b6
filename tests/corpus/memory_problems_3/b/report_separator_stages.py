"""Separates the voices of long conversations with a pretrained dual-path network (inference only)."""
import argparse

import torch
from torch import nn
from torch.nn import functional as F


class DualPathBlock(nn.Module):
    """Runs a recurrent cell within chunks, then one across chunks."""

    def __init__(self, width, hidden):
        super().__init__()
        self.intra = nn.Conv2d(width, hidden, (3, 1), padding=(1, 0))
        self.intra_out = nn.Conv2d(hidden, width, 1)
        self.inter = nn.Conv2d(width, hidden, (1, 3), padding=(0, 1))
        self.inter_out = nn.Conv2d(hidden, width, 1)

    def forward(self, x):
        x = x + self.intra_out(torch.tanh(self.intra(x)))
        return x + self.inter_out(torch.tanh(self.inter(x)))


class DualPathSeparator(nn.Module):
    def __init__(self, width=64, hidden=64, speakers=2, stages=6):
        super().__init__()
        self.speakers = speakers
        self.stages = nn.ModuleList(DualPathBlock(width, hidden) for _ in range(stages))
        self.split = nn.Conv2d(width, width * speakers, 1)

    def forward(self, x):
        outputs = []
        for stage in self.stages:
            x = stage(x)
            outputs.append(self.split(F.relu(x)))
        return outputs


class VoiceSeparator(nn.Module):
    def __init__(self, width=64, kernel=8, chunk=180, speakers=2):
        super().__init__()
        self.kernel = kernel
        self.chunk = chunk
        self.speakers = speakers
        self.width = width
        self.encoder = nn.Conv1d(1, width, kernel, stride=kernel // 2, bias=False)
        self.separator = DualPathSeparator(width=width, speakers=speakers)
        self.decoder = nn.ConvTranspose1d(width, 1, kernel, stride=kernel // 2, bias=False)

    def segment(self, features):
        batch, width, frames = features.shape
        features = F.pad(features, (0, -frames % self.chunk))
        return features.view(batch, width, -1, self.chunk).transpose(2, 3)

    def merge(self, chunks, frames):
        batch = chunks.shape[0]
        flat = chunks.transpose(2, 3).reshape(batch * self.speakers, self.width, -1)
        return flat[:, :, :frames]

    def forward(self, mixture):
        features = F.relu(self.encoder(mixture[:, None]))
        estimates = []
        for stage_output in self.separator(self.segment(features)):
            mask = self.merge(stage_output, features.shape[-1])
            sources = self.decoder(mask * features.repeat_interleave(self.speakers, dim=0))
            estimates.append(sources.view(mixture.shape[0], self.speakers, -1))
        return torch.stack(estimates)


def conversations(minutes, rate=8000, recorded=48000):
    """Recorded at 48 kHz, separated at 8 kHz."""
    low_pass = torch.hann_window(65).div(32).view(1, 1, -1)
    for index, length in enumerate(minutes):
        waveform = torch.rand(1, 1, int(length * 60 * recorded)) - 0.5
        yield f"call-{index:03d}", F.conv1d(waveform, low_pass, stride=recorded // rate, padding=32)[0, 0]


@torch.inference_mode()
def separate(model, waveform, device):
    estimate = model(waveform[None].to(device))[-1]
    return estimate[0].cpu()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, nargs="*", default=[1.5, 3.0, 2.0, 4.5, 2.5, 4.0, 3.5, 1.0])
    args = parser.parse_args()
    device = torch.device("cuda")
    model = VoiceSeparator().to(device).eval()
    for name, waveform in conversations(args.minutes):
        voices = separate(model, waveform, device)
        peak = torch.cuda.max_memory_allocated() / 2**30
        print(f"{name}: {waveform.numel() / 8000:.0f} s -> {tuple(voices.shape)}, peak {peak:.2f} GiB")


if __name__ == "__main__":
    main()
