"""Kind of report: "autocast uses more memory than fp32 in inference" (PyTorch issues about the weight cache of autocast).

True cause: one autocast region surrounds the whole evaluation of an ensemble; autocast keeps the half precision copy of
every fp32 weight that requires gradients until the outermost region ends, so that the copies of all the members pile up.
The line: `with torch.autocast("cuda", dtype=torch.bfloat16):` around the loop of the members.
Cure: enter autocast per member (or cache_enabled=False, torch.clear_autocast_cache()), or cast the models once with
.bfloat16(), or model.requires_grad_(False).
"""

import torch
from torch import nn


class Member(nn.Module):
    def __init__(self, dim=768, layers=6):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim)) for _ in range(layers)
        )
        self.out = nn.Linear(dim, 128)

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return self.out(x)


class Ensemble:
    def __init__(self, members, device):
        with torch.device(device):
            self.members = [Member().eval() for _ in range(members)]

    @torch.no_grad()
    def predict(self, batches):
        votes = [0] * len(batches)
        with torch.autocast("cuda", dtype=torch.bfloat16):  # CAUSE
            for member in self.members:
                for i, batch in enumerate(batches):
                    votes[i] = votes[i] + member(batch).softmax(-1)  # CAUSE
        return [v.argmax(-1).cpu() for v in votes]


def main():
    torch.manual_seed(28)
    ensemble = Ensemble(10, "cuda")
    for day in range(4):
        batches = [torch.randn(64, 768).cuda() for _ in range(20)]
        answers = torch.cat(ensemble.predict(batches))
        print(f"day {day}: {len(answers)} answers, most common {answers.mode().values.item()}", flush=True)


if __name__ == "__main__":
    main()
