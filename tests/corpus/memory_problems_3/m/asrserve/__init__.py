from .service import Request, Transcriber
