import torch


def descent_direction(grad, floor=1e-12):
    return grad / grad.abs().amax().clamp_min(floor)


def pick_step(objective, model, direction, lengths):
    """Parabola-free search: try every length, take the one with the lowest misfit."""
    trial = []
    for a in lengths:
        trial.append(objective(model - a * direction))
    values = torch.stack(trial)
    return lengths[int(values.argmin())], values
