"""Latent-to-waveform decoder (one latent frame = 80 ms at 24 kHz)."""
import torch.nn as nn


class CodecDecoder(nn.Module):
    def __init__(self, latent=64, width=256):
        super().__init__()
        layers = [nn.Conv1d(latent, width, 7, padding=3)]
        for stride in (8, 6, 5, 4, 2):
            layers += [nn.ELU(), nn.ConvTranspose1d(width, width // 2, 2 * stride, stride, stride // 2 + stride % 2,
                                                    output_padding=stride % 2)]
            width //= 2
        self.net = nn.Sequential(*layers, nn.ELU(), nn.Conv1d(width, 1, 7, padding=3), nn.Tanh())

    def forward(self, latents):
        return self.net(latents.transpose(1, 2)).squeeze(1)
