"""Roll a forecast model out over many steps and score it at the stations of several streams."""
import torch
from torch import nn
from torch.nn import functional as F

STREAMS = {"era5": (40320, 6), "synop": (11000, 4), "atms": (52000, 22), "npp": (30000, 5)}
FORECAST_STEPS = 24
GEO_INFOS = 105
device = torch.device("cuda")


class StreamSampler(torch.utils.data.IterableDataset):
    """One window: source tokens, and per forecast step the coordinates and values to predict."""

    def __init__(self, windows, steps, tokens=4096, width=256):
        self.windows, self.steps, self.tokens, self.width = windows, steps, tokens, width

    def __iter__(self):
        for _ in range(self.windows):
            coords = [{n: torch.zeros(c, GEO_INFOS, dtype=torch.float16) for n, (c, _) in STREAMS.items()}
                      for _ in range(self.steps)]
            values = [{n: torch.zeros(c, channels, dtype=torch.float16) for n, (c, channels) in STREAMS.items()}
                      for _ in range(self.steps)]
            yield torch.zeros(1, self.tokens, self.width), coords, values


class ForecastEngine(nn.Module):
    def __init__(self, width=256, blocks=2):
        super().__init__()
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True, norm_first=True)
                                    for _ in range(blocks))

    def forward(self, tokens):
        for block in self.blocks:
            tokens = block(tokens)
        return tokens


class Model(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.engine = ForecastEngine(width)
        self.embed_coords = nn.ModuleDict({name: nn.Linear(GEO_INFOS, 64) for name in STREAMS})
        self.context = nn.Linear(width, 64)
        self.heads = nn.ModuleDict({name: nn.Linear(64, channels) for name, (_, channels) in STREAMS.items()})

    def predict(self, tokens, coords):
        context = self.context(tokens.mean(dim=1))
        return {name: self.heads[name](F.gelu(self.embed_coords[name](c.float()) + context))
                for name, c in coords.items()}

    def rollout(self, tokens, target_coords):
        for step in range(len(target_coords)):
            tokens = self.engine(tokens)
            yield step, self.predict(tokens, target_coords[step])


def to_device(batch):
    tokens, coords, values = batch
    coords = [{name: c.to(device, non_blocking=True) for name, c in step.items()} for step in coords]
    return tokens.to(device), coords, values


def score(predictions, values):
    return {name: F.mse_loss(predictions[name], values[name].to(device).float()).item() for name in predictions}


torch.manual_seed(0)
model = Model().to(device).eval()
table = {name: [0.0] * FORECAST_STEPS for name in STREAMS}
windows = 0
for batch in StreamSampler(windows=3, steps=FORECAST_STEPS):
    tokens, coords, values = to_device(batch)
    with torch.inference_mode():
        for step, predictions in model.rollout(tokens, coords):
            for name, error in score(predictions, values[step]).items():
                table[name][step] += error
    windows += 1
    print(f"window {windows}: {torch.cuda.max_memory_allocated() >> 20} MiB at most, "
          f"{torch.cuda.memory_allocated() >> 20} MiB now", flush=True)
    del tokens, coords, values, batch

for name, errors in table.items():
    print(f"{name:6s} first {errors[0] / windows:.4f} last {errors[-1] / windows:.4f}")
print("max allocated", torch.cuda.max_memory_allocated() // 2**20, "MiB")
