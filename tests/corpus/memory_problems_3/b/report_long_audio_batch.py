"""Transcribes recordings of very different lengths, one after the other, with an encoder-decoder speech model."""
import dataclasses

import torch
from torch import nn


@dataclasses.dataclass
class Settings:
    mels: int = 128
    width: int = 256
    layers: int = 8
    heads: int = 8
    rate: int = 100
    vocab: int = 32_000


class ConvFrontend(nn.Module):
    """Subsamples the mel frames by four before the encoder."""

    def __init__(self, s):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 128, 3, padding=1)
        self.pool = nn.AvgPool2d(4)
        self.out = nn.Linear(128 * s.mels // 4, s.width)

    def forward(self, mel):
        x = self.conv1(mel).relu_()
        x = self.pool(x)
        return self.out(x.permute(0, 2, 1, 3).flatten(2))


class Encoder(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.frontend = ConvFrontend(s)
        self.mix = nn.ModuleList(nn.Conv1d(s.width, s.width, 31, padding=15, groups=s.width) for _ in range(4))

    def forward(self, mel):
        x = self.frontend(mel).transpose(1, 2)
        for conv in self.mix:
            x = x + conv(x)
        return x.transpose(1, 2)


class Decoder(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.settings = s
        self.embed = nn.Embedding(s.vocab, s.width)
        self.key = nn.ModuleList(nn.Linear(s.width, s.width) for _ in range(s.layers))
        self.head = nn.Linear(s.width, s.vocab)

    def allocate_cache(self, frames, device):
        """Keys and values of the cross attention and of the text, sized for the whole recording."""
        s = self.settings
        shape = (2, s.heads, frames, s.width // s.heads)
        return [torch.empty(shape, device=device) for _ in range(s.layers)]

    def forward(self, memory, cache, tokens):
        s = self.settings
        text = []
        for key, slot in zip(self.key, cache):
            projected = key(memory).view(memory.shape[1], s.heads, -1).transpose(0, 1)
            slot[0, :, :memory.shape[1], :projected.shape[-1]] = projected
        x = self.embed.weight[:1]
        for _ in range(tokens):
            x = x + sum(slot[0, :, 0, :s.width // s.heads].reshape(1, -1) for slot in cache)
            text.append(self.head(x).argmax(-1).item())
        return text


class Transcriber:
    def __init__(self, settings, device="cuda"):
        self.settings = settings
        self.device = device
        self.filters = torch.rand(settings.mels, 201) / 201
        self.encoder = Encoder(settings).to(device).eval()
        self.decoder = Decoder(settings).to(device).eval()

    def features(self, seconds):
        s = self.settings
        waveform = torch.zeros(int(seconds * 16000))
        hop = 16000 // s.rate
        spectrum = torch.stft(waveform, 400, hop_length=hop, window=torch.hann_window(400), return_complex=True)
        power = spectrum[:, :-1].abs().square()
        return (self.filters @ power).clamp(min=1e-10).log10().t()[None, None]

    @torch.inference_mode()
    def transcribe(self, seconds):
        mel = self.features(seconds).to(self.device)
        cache = self.decoder.allocate_cache(mel.shape[2], self.device)
        memory = self.encoder(mel)
        return self.decoder(memory, cache, tokens=max(8, int(seconds // 20)))


def transcribe_all(model, playlist):
    for name, seconds in playlist:
        text = model.transcribe(seconds)
        allocated = torch.cuda.memory_allocated() / 2**30
        reserved = torch.cuda.memory_reserved() / 2**30
        print(f"{name}: {seconds / 60:.1f} min, {len(text)} tokens, "
              f"allocated {allocated:.2f} GiB, reserved {reserved:.2f} GiB", flush=True)


if __name__ == "__main__":
    torch.manual_seed(0)
    transcribe_all(Transcriber(Settings()), [
        ("standup.wav", 95), ("voicemail.wav", 40), ("interview.wav", 420), ("call.wav", 180),
        ("lecture.wav", 560), ("panel.wav", 610), ("memo.wav", 65)])
