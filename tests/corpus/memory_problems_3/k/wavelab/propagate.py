import torch
import torch.nn.functional as F


class Propagator:
    """Constant-density acoustic solver, all shots in one batch."""

    def __init__(self, survey, device):
        self.s = survey
        self.device = device
        self.taper = survey.taper(device)
        k = torch.tensor([[0., 1., 0.], [1., -4., 1.], [0., 1., 0.]]) / survey.dx ** 2
        self.kernel = k.view(1, 1, 3, 3).to(device)
        spikes = torch.zeros(survey.shots, 1, survey.nz, survey.nx)
        for i, c in enumerate(survey.source_columns()):
            spikes[i, 0, survey.border + 2, c] = 1.0
        self.spikes = spikes.to(device)

    def shoot(self, velocity, wavelet):
        s = self.s
        c2 = (velocity * s.dt) ** 2
        prev = torch.zeros(s.shots, 1, s.nz, s.nx, device=self.device)
        cur = torch.zeros_like(prev)
        traces = []
        for it in range(s.nt):
            lap = F.conv2d(cur, self.kernel, padding=1)
            nxt = 2 * cur - prev + c2 * lap + float(wavelet[it]) * self.spikes
            prev, cur = cur * self.taper, nxt * self.taper
            traces.append(cur[:, 0, s.border + 2, :])
        return torch.stack(traces, dim=1)
