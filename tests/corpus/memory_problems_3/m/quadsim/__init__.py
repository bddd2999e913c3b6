from .env import QuadrupedEnv
from .policy import ActorCritic
