"""Phase picker: a transformer over three component seismograms."""
import torch
from torch import nn


class PhasePicker(nn.Module):
    def __init__(self, width=640, depth=10, heads=10, stride=8):
        super().__init__()
        self.embed = nn.Conv1d(3, width, 2 * stride, stride=stride, padding=stride // 2)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.pick = nn.ConvTranspose1d(width, 3, 2 * stride, stride=stride, padding=stride // 2)

    def forward(self, waveform):
        x = self.embed(waveform).transpose(1, 2)
        return self.pick(self.encoder(x).transpose(1, 2))


def write_base_checkpoint(path):
    """The published weights with the optimizer's state, as the pretraining job writes them."""
    torch.manual_seed(0)
    model = PhasePicker()
    weights = model.state_dict()
    torch.save({
        "step": 400_000,
        "model": weights,
        "model_ema": {k: v.clone() for k, v in weights.items()},
        "optimizer": {"exp_avg": {k: torch.zeros_like(v) for k, v in weights.items()},
                      "exp_avg_sq": {k: torch.zeros_like(v) for k, v in weights.items()}},
    }, path)
