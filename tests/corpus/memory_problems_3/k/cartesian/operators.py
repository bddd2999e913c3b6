"""Linear operators of a multi-coil Cartesian acquisition."""
import torch


class _WithAdjoint(torch.autograd.Function):
    """Applies a linear map; differentiates with its adjoint, not with autograd."""

    @staticmethod
    def forward(x, apply, adjoint):
        return apply(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, _, adjoint = inputs
        ctx.adjoint = adjoint
        ctx.domain_dtype = x.dtype
        ctx.codomain = output

    @staticmethod
    def backward(ctx, grad):
        grad = grad.to(ctx.codomain.dtype).reshape(ctx.codomain.shape)
        return ctx.adjoint(grad).to(ctx.domain_dtype), None, None


class LinearOperator:
    def _forward(self, x):
        raise NotImplementedError

    def _adjoint(self, y):
        raise NotImplementedError

    def __call__(self, x):
        return _WithAdjoint.apply(x, self._forward, self._adjoint)

    def H(self, y):
        return _WithAdjoint.apply(y, self._adjoint, self._forward)


class SenseOperator(LinearOperator):
    """image -> coil images -> masked k-space."""

    def __init__(self, maps, mask):
        self.maps = maps
        self.mask = mask

    def _forward(self, image):
        return torch.fft.fft2(self.maps * image, norm="ortho") * self.mask

    def _adjoint(self, kspace):
        coils = torch.fft.ifft2(kspace * self.mask, norm="ortho")
        return (coils * self.maps.conj()).sum(1, keepdim=True)
