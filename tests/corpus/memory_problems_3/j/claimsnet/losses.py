import torch


def poisson_deviance(log_rate, claims):
    """Unit deviance of each policy."""
    rate = torch.exp(log_rate)
    ratio = torch.where(claims > 0, claims / rate, torch.ones_like(rate))
    return 2.0 * (claims * torch.log(ratio) - (claims - rate))


def weighted_deviance(log_rate, claims, exposure):
    deviance = poisson_deviance(log_rate, claims)
    return (deviance * exposure).sum() / exposure.sum()
