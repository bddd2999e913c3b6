import torch
import torch.nn as nn


class AdmissionNet(nn.Module):
    """Risk of readmission within 30 days from one admission record."""

    def __init__(self, labs=380, codes=900, ward_count=24, width=1536):
        super().__init__()
        self.ward = nn.Linear(ward_count, 32, bias=False)
        self.input = nn.Linear(labs + codes + 32, width)
        self.hidden = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.risk = nn.Linear(width, 1)

    def forward(self, labs, codes, ward):
        x = torch.cat([labs, codes, self.ward(ward)], dim=-1)
        x = torch.relu(self.input(x))
        for layer, norm in zip(self.hidden, self.norms):
            x = x + torch.relu(layer(norm(x)))
        return self.risk(x).squeeze(-1)
