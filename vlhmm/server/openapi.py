from typing import Any

from vlhmm.server.settings import ServerSettings


def description(settings: ServerSettings) -> dict[str, Any]:
    return {}
