"""`vlhmm serve`: a model behind the API that OpenAI's clients speak, with exact log-probabilities and constraints.

A request is parsed and checked in the event loop; one thread owns the model and computes batches (`engine`), another compiles
constraints. Needs the extra `serve`.
"""

from vlhmm.server.settings import ServerSettings

__all__ = ["ServerSettings", "application", "serve"]


def __getattr__(name: str) -> object:
    """Packages of the extra are imported when they are needed."""
    try:
        if name == "application":
            from vlhmm.server.routes import application

            return application
        if name == "serve":
            from vlhmm.server.running import serve

            return serve
    except ImportError as error:
        if error.name in ("starlette", "uvicorn", "prometheus_client"):
            raise ValueError(f'the server needs {error.name}: pip install "vlhmm[serve]"') from None
        raise
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
