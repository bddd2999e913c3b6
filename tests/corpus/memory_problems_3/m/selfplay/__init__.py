from .agent import Agent
from .league import League
from .replay import Replay
