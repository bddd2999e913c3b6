from .rotary import RotaryTable, rotate

__all__ = ["RotaryTable", "rotate"]
