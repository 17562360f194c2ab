"""`vlhmm serve`: a model behind the API that OpenAI's clients speak, with exact log-probabilities and constraints.

A request is parsed and checked in the event loop; one thread owns the model and computes batches (`engine`), another compiles
constraints. Needs the extra `serve`.
"""

from typing import TYPE_CHECKING

from vlhmm.server.settings import ServerSettings

if TYPE_CHECKING:
    from vlhmm.server.routes import application
    from vlhmm.server.running import serve

__all__ = ["ServerSettings", "application", "serve"]


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Imports what needs the packages of the extra when it is first asked for."""
        if name not in ("application", "serve"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            from vlhmm.server.routes import application
            from vlhmm.server.running import serve
        except ModuleNotFoundError as error:
            raise ValueError(f'the server needs {error.name}: pip install "vlhmm[serve]"') from None
        globals().update(application=application, serve=serve)
        return globals()[name]
