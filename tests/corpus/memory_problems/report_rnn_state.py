"""Kind of report: "LSTM leaks memory in streaming inference; each chunk is slower and larger" (PyTorch issues and forum).

True cause: the state of the recurrent cells goes from chunk to chunk without detach and gradients are on, so that the
graph of every chunk since the start hangs on the current state.
The line: `self.state = state` (after `features, state = self.model(chunk, self.state)`).
Cure: run the stream under torch.inference_mode(), or keep `tuple(s.detach() for s in state)`.
"""

import torch
from torch import nn


class StreamingModel(nn.Module):
    def __init__(self, bins=80, hidden=512, symbols=64):
        super().__init__()
        self.conv = nn.Conv1d(bins, hidden, 3, padding=1)
        self.cells = nn.ModuleList([nn.LSTMCell(hidden, hidden) for _ in range(2)])
        self.joint = nn.Linear(hidden, symbols)

    def initial(self, batch, device):
        return [(torch.zeros(batch, 512, device=device), torch.zeros(batch, 512, device=device)) for _ in self.cells]

    def forward(self, chunk, state):
        frames = self.conv(chunk).permute(2, 0, 1)
        outputs = []
        for frame in frames:
            after = []
            for cell, (h, c) in zip(self.cells, state):
                h, c = cell(frame, (h, c))
                after.append((h, c))
                frame = h
            state = after
            outputs.append(self.joint(frame))
        return torch.stack(outputs), state


class Recognizer:
    def __init__(self, model, microphones, device):
        self.model = model.to(device).eval()
        self.device = device
        self.state = model.initial(microphones, device)
        self.symbols = []

    def feed(self, chunk):
        features, state = self.model(chunk.to(self.device), self.state)
        self.state = state  # CAUSE
        self.symbols.append(features.argmax(-1).cpu())

    def text_length(self):
        return sum(s.shape[0] for s in self.symbols)


def main():
    torch.manual_seed(21)
    recognizer = Recognizer(StreamingModel(), microphones=8, device="cuda")
    for number in range(250):
        recognizer.feed(torch.zeros(8, 80, 8))
        if number % 50 == 0:
            print(f"chunk {number}, {recognizer.text_length()} symbols", flush=True)


if __name__ == "__main__":
    main()
