import torch

NAMES = ["amplitude", "envelope", "phase", "frequency", "dip_inline", "dip_crossline", "energy", "gradient"]


def quadrature(cube):
    spectrum = torch.fft.rfft(cube, dim=-1)
    return torch.fft.irfft(spectrum * (-1j), n=cube.shape[-1], dim=-1)


def attribute_stack(cube):
    trace = cube.float() / 127.0
    imag = quadrature(trace)
    envelope = torch.sqrt(trace.square() + imag.square())
    phase = torch.atan2(imag, trace)
    frequency = torch.diff(phase, dim=-1, append=phase[..., -1:])
    dip_inline = torch.diff(phase, dim=0, append=phase[-1:])
    dip_crossline = torch.diff(phase, dim=1, append=phase[:, -1:])
    energy = envelope.square()
    gradient = torch.diff(trace, dim=-1, append=trace[..., -1:])
    return torch.stack([trace, envelope, phase, frequency, dip_inline, dip_crossline, energy, gradient])
