"""`vlhmm serve`: a model over HTTP, for the clients of OpenAI's API."""

from __future__ import annotations

from typing import Annotated

import typer

from vlhmm.cli import options
from vlhmm.cli.options import DeviceOption, ModelDir, choose_device, utf8
from vlhmm.cli.show import message


def register(app: typer.Typer) -> None:
    app.command(
        epilog="Examples:\n  vlhmm serve runs/demo\n"
        '  curl http://127.0.0.1:8000/v1/completions -d \'{"prompt": "return the", "max_tokens": 8}\'\n'
        "  VLHMM_API_KEY=secret vlhmm serve runs/demo --host 0.0.0.0 --port 80"
    )(serve)


def serve(
    folder: ModelDir,
    host: Annotated[
        str, typer.Option("--host", help="The address to listen on; 0.0.0.0: all of this machine.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="0: any free one.")] = 8000,
    device: DeviceOption = options.Device.auto,
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            "--api-key",
            envvar="VLHMM_API_KEY",
            show_default=False,
            show_envvar=True,
            callback=utf8,
            help="A key that requests must bring; may be repeated. Without one every request is answered.",
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--model-name", show_default=False, help="What clients call the model; default: the folder's name."
        ),
    ] = None,
    max_batch: Annotated[int, typer.Option("--max-batch", help="Texts that are computed side by side.")] = 64,
    max_requests: Annotated[
        int, typer.Option("--max-requests", help="Requests at a time, running and waiting; more are answered 429.")
    ] = 512,
    max_connections: Annotated[
        int, typer.Option("--max-connections", help="Connections at a time; more are answered 503.")
    ] = 4096,
    max_length: Annotated[int, typer.Option("--max-length", help="Tokens of a prompt or text.")] = 32_768,
    max_tokens: Annotated[int, typer.Option("--max-tokens", help="New tokens of a text.")] = 4096,
    max_body: Annotated[int, typer.Option("--max-body", metavar="BYTES", help="Size of a request.")] = 4 << 20,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", help="Until a request is answered, or refused with 504.")
    ] = 300.0,
    log_requests: Annotated[bool, typer.Option("--log-requests", help="Print a line for each request.")] = False,
) -> None:
    """Serve a model over HTTP: completions as OpenAI's API has them, every query of this package, metrics, a page.

    SIGTERM or Ctrl-C ends it after the running requests.
    """
    from vlhmm.lm import load
    from vlhmm.server import ServerSettings
    from vlhmm.server import serve as run

    settings = ServerSettings(
        host=host,
        port=port,
        model_name=name or folder.resolve().name,
        api_keys=tuple(api_key or ()),
        max_batch=max_batch,
        max_requests=max_requests,
        max_connections=max_connections,
        max_length=max_length,
        max_tokens=max_tokens,
        max_body_bytes=max_body,
        request_seconds=timeout,
    )
    lm = load(folder, choose_device(device))
    run(
        lm,
        settings,
        folder=folder,
        log_requests=log_requests,
        started=lambda address: message(f"serving {settings.model_name} at {address} (Ctrl-C ends it)"),
    )
