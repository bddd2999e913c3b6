from collections import Counter
from dataclasses import dataclass, field

import torch

from .model import Decoder, Encoder

LANGUAGES = {"en": 11, "de": 12, "fr": 13, "es": 14, "it": 15}


class TranscriptionError(Exception):
    def __init__(self, code, message):
        super().__init__(message)
        self.code = code


@dataclass
class Request:
    id: str
    samples: torch.Tensor
    language: str
    prompt: list = field(default_factory=list)


class Transcriber:
    max_prompt = 32

    def __init__(self, device):
        self.device = device
        self.encoder = Encoder().to(device).eval()
        self.decoder = Decoder().to(device).eval()
        self.failures = []
        self.served = 0

    def _features(self, samples):
        frames = samples.to(self.device).unfold(-1, 400, 160)
        window = torch.hann_window(400, device=self.device)
        power = (frames * window)[..., :80] ** 2
        return torch.log1p(power).transpose(1, 2).contiguous()

    def _start_tokens(self, request, batch):
        if request.language not in LANGUAGES:
            raise TranscriptionError("language", f"language {request.language!r} is not supported")
        if len(request.prompt) > self.max_prompt:
            raise TranscriptionError("prompt", f"prompt has {len(request.prompt)} tokens")
        ids = [1, LANGUAGES[request.language], *request.prompt]
        return torch.tensor(ids, device=self.device).repeat(batch, 1)

    @torch.inference_mode()
    def transcribe(self, request, max_tokens=12):
        mel = self._features(request.samples)
        states = self.encoder(mel)
        cache = self.decoder.prepare(states)
        tokens = self._start_tokens(request, states.shape[0])
        for _ in range(max_tokens):
            logits = self.decoder.step(tokens, cache)
            tokens = torch.cat([tokens, logits.argmax(-1, keepdim=True)], dim=1)
        return tokens.cpu().tolist()

    def handle(self, request):
        try:
            result = self.transcribe(request)
        except TranscriptionError as err:
            self.failures.append((request.id, err))
            return {"id": request.id, "status": "error", "code": err.code}
        self.served += 1
        return {"id": request.id, "status": "ok", "chunks": len(result)}

    def summary(self):
        codes = Counter(err.code for _, err in self.failures)
        return {"served": self.served, "failed": len(self.failures), "codes": dict(codes)}
