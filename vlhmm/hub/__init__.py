"""Model folders on the Hugging Face hub: fetched, and uploaded."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import cast

from vlhmm.data.transformers_files import SPECIAL_TOKENS_MAP, TOKENIZER_CONFIG
from vlhmm.training.checkpoint import CONFIG, MODEL, TOKENIZER, FolderError

CARD = "README.md"
FILES = (CONFIG, MODEL, TOKENIZER, TOKENIZER_CONFIG, SPECIAL_TOKENS_MAP, CARD)
"""Of a repository that holds a model."""

_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*|\w[\w-]*")


def fetched_folder(
    name: str | Path,
    *,
    revision: str | None = None,
    cache_dir: str | Path | None = None,
    force_download: bool = False,
    local_files_only: bool = False,
    token: str | bool | None = None,
) -> Path:
    """The folder itself, or that of a repository of the hub in the local cache, downloaded where it is not there yet."""
    if str(name) and Path(name).is_dir():
        return Path(name)
    if isinstance(name, Path) or not _NAME.fullmatch(name):
        raise FolderError(f"{name} is no folder, and no name of the hub: give a folder, or OWNER/NAME")
    with _hub_errors(f"{name} is no folder, and cannot be had from the hub"):
        from huggingface_hub import snapshot_download

        found = snapshot_download(
            name,
            revision=revision,
            cache_dir=cache_dir,
            force_download=force_download,
            local_files_only=local_files_only,
            token=token,
            # A repository may hold a whole training run; its checkpoint is several times the model.
            allow_patterns=list(FILES),
        )
    return Path(found)


def upload_folder(
    folder: Path,
    repo_id: str,
    *,
    commit_message: str,
    private: bool | None = None,
    token: str | None = None,
    branch: str | None = None,
    create_pr: bool | None = None,
    allow_patterns: list[str] | str | None = None,
    ignore_patterns: list[str] | str | None = None,
    delete_patterns: list[str] | str | None = None,
) -> str:
    """Upload the files of a folder in one commit to a repository, which is made if it does not exist; its URL."""
    with _hub_errors(f"the model cannot be pushed to {repo_id}"):
        from huggingface_hub import HfApi

        api = HfApi(token=token)
        repo_id = api.create_repo(repo_id=repo_id, private=private, exist_ok=True).repo_id
        commit = api.upload_folder(
            repo_id=repo_id,
            repo_type="model",
            folder_path=folder,
            commit_message=commit_message,
            revision=branch,
            create_pr=create_pr,
            allow_patterns=allow_patterns,
            ignore_patterns=ignore_patterns,
            delete_patterns=delete_patterns,
        )
    return str(commit)


def require_hub() -> None:
    """Refuses the hub where the package that speaks to it is not installed."""
    if find_spec("huggingface_hub") is None:
        raise ImportError("the hub needs huggingface_hub: pip install 'vlhmm[hub]'")


@contextmanager
def _hub_errors(what: str) -> Iterator[None]:
    """One sentence in place of the many exceptions of the client."""
    require_hub()
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    # Its bases are the errors of the HTTP client, which another release takes from another package.
    of_client = cast(tuple[type[Exception], ...], HfHubHTTPError.__bases__)
    refused: tuple[type[Exception], ...] = (OSError, HFValidationError, *of_client)
    try:
        yield
    except refused as error:
        reason = " ".join(str(error).split())[:400].rstrip(".")
        raise FolderError(f"{what}: {reason}; check the name, the connection, and `hf auth login`") from error
