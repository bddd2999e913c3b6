from .router import LearnedRouter, clear_load_balancing_loss, get_load_balancing_loss
from .experts import MoE, MoEArguments

__all__ = ["LearnedRouter", "MoE", "MoEArguments", "clear_load_balancing_loss", "get_load_balancing_loss"]
