"""Applies a speech tagger to a folder of recordings and collects the frame scores for the whole folder.

Report: https://github.com/MarvinLvn/voice-type-classifier/issues/12 ("CUDA out of memory error during validation":
        predictions.append(p) keeps a reference to each result of the model)
Cause:  the loop runs with gradients enabled and keeps every output on the GPU, each with the graph that made it.
Line:   self.predictions.append(scores)
Cure:   run under torch.inference_mode() and append scores.cpu().
"""
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

CLASSES = ("KCHI", "CHI", "MAL", "FEM", "SPEECH")


class Recordings(Dataset):
    """Log-mel features of recordings cut in chunks of two seconds."""

    def __init__(self, count=1280, frames=200, bands=64, seed=0):
        self.count = count
        self.shape = (frames, bands)
        self.seed = seed

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(self.seed + index)
        return index, torch.randn(self.shape, generator=generator)


class SpeechTagger(nn.Module):
    def __init__(self, bands=64, width=192, classes=len(CLASSES)):
        super().__init__()
        self.front = nn.Sequential(
            nn.Conv1d(bands, width, 5, padding=2), nn.BatchNorm1d(width), nn.ReLU(),
            nn.Conv1d(width, width, 5, padding=2), nn.BatchNorm1d(width), nn.ReLU(),
            nn.Conv1d(width, width, 5, padding=2), nn.BatchNorm1d(width), nn.ReLU(),
        )
        self.project = nn.Sequential(nn.Linear(width, 2 * width), nn.Tanh(), nn.Linear(2 * width, width), nn.Tanh())
        self.classify = nn.Linear(width, classes)

    def forward(self, features):
        x = self.front(features.transpose(1, 2)).transpose(1, 2)
        return torch.sigmoid(self.classify(self.project(x)))


class FolderAnnotator:
    def __init__(self, model, device, threshold=0.5):
        self.model = model.to(device).eval()
        self.device = device
        self.threshold = threshold
        self.names = []
        self.predictions = []

    def apply(self, loader):
        for number, (indices, features) in enumerate(loader):
            scores = self.model(features.to(self.device))
            self.names.extend(f"chunk{int(index):05d}" for index in indices)
            self.predictions.append(scores)  # CAUSE
            if number % 20 == 0:
                print(f"batch {number}/{len(loader)} {torch.cuda.memory_allocated() / 2**20:.0f} MiB")

    def segments(self):
        """Fraction of the frames in which each class is active, per chunk."""
        result = {}
        position = 0
        for scores in self.predictions:
            active = (scores > self.threshold).float().mean(dim=1).cpu()
            for row in active:
                result[self.names[position]] = dict(zip(CLASSES, row.tolist()))
                position += 1
        return result


def load_model(checkpoint=None):
    model = SpeechTagger()
    if checkpoint is not None:
        model.load_state_dict(torch.load(checkpoint, map_location="cpu"))
    return model


def main():
    torch.manual_seed(0)
    loader = DataLoader(Recordings(), batch_size=16, shuffle=False)
    annotator = FolderAnnotator(load_model(), torch.device("cuda"))
    annotator.apply(loader)
    segments = annotator.segments()
    print(len(segments), "chunks annotated")
    print("max allocated", torch.cuda.max_memory_allocated() // 2**20, "MiB")


if __name__ == "__main__":
    main()
