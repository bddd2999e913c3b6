import dataclasses
import time
from typing import Optional

from .model import KVCache


@dataclasses.dataclass
class Session:
    id: str
    cache: KVCache
    created: float = dataclasses.field(default_factory=time.monotonic)
    closed_at: Optional[float] = None
    turns: int = 0


class SessionManager:
    """Looks up the state of a conversation by its id."""

    def __init__(self, model, max_tokens):
        self.model = model
        self.max_tokens = max_tokens
        self.sessions = {}

    def open(self, session_id):
        if session_id not in self.sessions:
            self.sessions[session_id] = Session(session_id, self.model.new_cache(self.max_tokens))
        return self.sessions[session_id]

    def close(self, session_id):
        session = self.sessions[session_id]
        session.closed_at = time.monotonic()
        return session

    @property
    def active(self):
        return sum(s.closed_at is None for s in self.sessions.values())
