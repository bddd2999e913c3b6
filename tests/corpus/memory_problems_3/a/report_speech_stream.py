"""A text-to-speech service: one thread generates audio frames of a request, another one decodes them to samples."""
import queue
import threading
import time
from dataclasses import dataclass, field

import torch
from torch import nn

FRAME_RATE = 12.5
SAMPLE_RATE = 24000
END = object()


@dataclass
class Request:
    text: str
    voice: str
    audio: list = field(default_factory=list)


class StreamingAttention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x, state):
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        if state.get("k") is not None:
            k = torch.cat([state["k"], k], dim=2)
            v = torch.cat([state["v"], v], dim=2)
        state["k"], state["v"] = k, v
        scores = (q @ k.transpose(-1, -2)) / (width // self.heads) ** 0.5
        return self.out((scores.softmax(dim=-1) @ v).transpose(1, 2).reshape(batch, length, width))


class FrameModel(nn.Module):
    """Predicts the latent of the next frame from the text and the frames so far."""

    def __init__(self, width=512, heads=8, layers=6, latent=64):
        super().__init__()
        self.text = nn.Embedding(256, width)
        self.frame = nn.Linear(latent, width)
        self.attentions = nn.ModuleList(StreamingAttention(width, heads) for _ in range(layers))
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(layers)
        )
        self.head = nn.Linear(width, latent)

    def run(self, x, states):
        for attention, mlp, state in zip(self.attentions, self.mlps, states):
            x = x + attention(x, state)
            x = x + mlp(x)
        return x

    def start(self, text):
        states = [{} for _ in self.attentions]
        tokens = torch.tensor([list(text.encode())], device="cuda")
        return self.head(self.run(self.text(tokens), states)[:, -1:]), states

    def step(self, latent, states):
        return self.head(self.run(self.frame(latent), states))


class Codec(nn.Module):
    def __init__(self, latent=64, hop=int(SAMPLE_RATE / FRAME_RATE)):
        super().__init__()
        self.expand = nn.Sequential(nn.Linear(latent, 512), nn.ELU(), nn.Linear(512, hop), nn.Tanh())

    def forward(self, latents):
        return self.expand(latents).flatten(1)


class SpeechService:
    def __init__(self):
        self.frames = FrameModel().cuda().eval()
        self.codec = Codec().cuda().eval()

    def generate_latents(self, text, output):
        latent, states = self.frames.start(text)
        for _ in range(int(len(text) * 0.85)):
            output.put(latent)
            latent = self.frames.step(latent, states)
        output.put(END)

    @torch.no_grad()
    def synthesize(self, request):
        latents = queue.Queue(maxsize=4)
        worker = threading.Thread(target=self.generate_latents, args=(request.text, latents), daemon=True)
        worker.start()
        while (latent := latents.get()) is not END:
            request.audio.append(self.codec(latent).cpu())
        worker.join()
        return torch.cat(request.audio, dim=1)


def requests():
    sentences = [
        "The train to the coast leaves from platform nine in ten minutes.",
        "Please keep your receipt; you will need it if you want to return the lamp.",
        "It rained all night, and in the morning the whole valley was under a thin white fog that did not lift.",
        "Thank you for calling.",
    ]
    for number in range(20):
        yield Request(" ".join(sentences[: 1 + number % len(sentences)]), voice=f"voice-{number % 3}")


def serve():
    torch.manual_seed(0)
    service = SpeechService()
    for request in requests():
        torch.cuda.reset_peak_memory_stats()
        begin = time.perf_counter()
        audio = service.synthesize(request)
        print(f"{len(request.text)} characters, {audio.shape[1] / SAMPLE_RATE:.1f} s of audio in {time.perf_counter() - begin:.2f} s, "
              f"peak {torch.cuda.max_memory_allocated() / 2**20:.0f} MiB")


if __name__ == "__main__":
    serve()
