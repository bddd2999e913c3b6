import torch


def area_weights(nlat, device):
    lat = torch.linspace(-90, 90, nlat, device=device)
    weights = torch.cos(torch.deg2rad(lat))
    return (weights / weights.mean()).view(nlat, 1)


def weighted_mean(field, weights):
    return (field * weights).mean(dim=(-2, -1))


def rmse(ensemble, truth, weights):
    error = (ensemble.mean(0) - truth).square()
    return weighted_mean(error, weights).sqrt().mean(0)


def spread(ensemble, weights):
    return weighted_mean(ensemble.var(0), weights).sqrt().mean(0)


def fair_crps(ensemble, truth, weights):
    members = ensemble.shape[0]
    skill = (ensemble - truth).abs().mean(0)
    pairs = (ensemble.unsqueeze(0) - ensemble.unsqueeze(1)).abs()
    dispersion = pairs.sum((0, 1)) / (2 * members * (members - 1))
    return weighted_mean(skill - dispersion, weights).mean(0)


class Scorecard:
    def __init__(self, variables):
        self.variables = variables
        self.rows = []

    def update(self, ensemble, truth, weights):
        scores = torch.stack([
            rmse(ensemble, truth, weights),
            spread(ensemble, weights),
            fair_crps(ensemble, truth, weights),
        ])
        self.rows.append(scores.cpu())

    def report(self):
        table = torch.stack(self.rows).mean(0)
        return {name: [round(float(v), 3) for v in table[:, i]] for i, name in enumerate(self.variables)}
