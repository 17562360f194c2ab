"""What is saved and pushed as a repository of the Hugging Face hub holds it."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from vlhmm.data import Tokenizer
from vlhmm.data.atomic import atomic_write
from vlhmm.data.json_file import read_json_object
from vlhmm.hub import CARD, require_hub, upload_folder
from vlhmm.hub.card import model_card
from vlhmm.models import Model
from vlhmm.training.checkpoint import check_replaceable, save_model
from vlhmm.training.run_folder import RESULTS


class Pushable:
    """The methods of a model with a tokenizer that `huggingface_hub.ModelHubMixin` names."""

    model: Model
    tokenizer: Tokenizer
    about: dict[str, Any]
    _folder: Path | None

    def save_pretrained(
        self,
        save_directory: str | Path,
        *,
        dtype: torch.dtype | None = None,
        repo_id: str | None = None,
        push_to_hub: bool = False,
        **push: Any,
    ) -> str | None:
        """Write the model with its model card, as a repository of the Hugging Face hub holds it.

        Args:
            save_directory: The folder. It is made if it does not exist. A README.md that is there already is left alone.
            dtype: torch.bfloat16 halves the file, and rounds the weights, as in `save`; None: the weights as they are.
            repo_id: OWNER/NAME on the hub; it stands in the model card.
            push_to_hub: Push the model too, to `repo_id`, or to a repository with the name of the folder.
            **push: Further arguments of `push_to_hub`.

        Returns:
            The URL of the commit if the model was pushed, else None.

        Raises:
            ValueError: Arguments of `push_to_hub` are given without it, or pushing fails.

        Example:
            >>> from pathlib import Path
            >>> vlhmm.load("demo-model").save_pretrained("for-others")
            >>> "library_name: vlhmm" in Path("for-others/README.md").read_text()
            True
        """
        if push and not push_to_hub:
            raise ValueError(f"{', '.join(push)} is for pushing, but push_to_hub is False: leave it out")
        if push_to_hub:
            require_hub()
        folder = Path(save_directory)
        check_replaceable(folder)
        about = self._with_results()
        save_model(folder, self.model, self.tokenizer, about, self._weights(dtype))
        if not (folder / CARD).exists():
            atomic_write(folder / CARD, model_card(self.model, self.tokenizer, about, repo_id).encode())
        return self.push_to_hub(repo_id or folder.resolve().name, **push) if push_to_hub else None

    def push_to_hub(
        self,
        repo_id: str,
        *,
        commit_message: str = "Push a model with vlhmm",
        private: bool | None = None,
        token: str | None = None,
        branch: str | None = None,
        create_pr: bool | None = None,
        allow_patterns: list[str] | str | None = None,
        ignore_patterns: list[str] | str | None = None,
        delete_patterns: list[str] | str | None = None,
    ) -> str:
        """Upload the model with its model card to the Hugging Face hub, in one commit.

        Arguments have the names of `huggingface_hub.ModelHubMixin`.

        Args:
            repo_id: OWNER/NAME of the repository, which is made if it does not exist.
            commit_message: The message of the commit.
            private: Whether a repository that is made is private; None: as the account has it.
            token: Access token of the hub; None: that of `hf auth login`.
            branch: The branch to push to; None: main.
            create_pr: Open a pull request instead.
            allow_patterns: Upload only files that match one of these.
            ignore_patterns: Leave out files that match one of these.
            delete_patterns: Delete files of the repository that match one of these.

        Returns:
            The URL of the commit.

        Raises:
            ImportError: huggingface_hub is missing: `pip install 'vlhmm[hub]'`.
            ValueError: The hub refuses, or cannot be reached.

        Example:
            >>> lm = vlhmm.load("demo-model")
            >>> lm.push_to_hub("someone/demo-model", private=True)  # doctest: +SKIP
        """
        require_hub()
        with TemporaryDirectory() as folder:
            self.save_pretrained(folder, repo_id=repo_id)
            return upload_folder(
                Path(folder),
                repo_id,
                commit_message=commit_message,
                private=private,
                token=token,
                branch=branch,
                create_pr=create_pr,
                allow_patterns=allow_patterns,
                ignore_patterns=ignore_patterns,
                delete_patterns=delete_patterns,
            )

    def _weights(self, dtype: torch.dtype | None) -> dict[str, Tensor]:
        if dtype not in (None, torch.bfloat16):
            raise ValueError(
                f"dtype is {dtype}, but must be torch.bfloat16 or None, which keeps the weights as they are"
            )
        weights = self.model.state_dict()
        if dtype is not None:
            # Tables of integers, and numbers that the support is read from, stay.
            weights = {
                name: tensor.to(dtype) if tensor.dtype == torch.float32 else tensor for name, tensor in weights.items()
            }
        return weights

    def _with_results(self) -> dict[str, Any]:
        """`about`, and the figures of the run that wrote the model's folder."""
        results = None if self._folder is None else self._folder / RESULTS
        if "results" in self.about or results is None or not results.is_file():
            return self.about
        return {**self.about, "results": read_json_object(results)}
