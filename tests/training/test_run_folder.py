"""What a run left behind is read, or refused by the name of its file."""

from pathlib import Path

import pytest
import torch

from vlhmm.tensor_file import FolderError, write_tensors
from vlhmm.training.run_folder import LOG, STATE, RunFolder, read_log


def test_a_log_with_a_line_cut_short_is_read_without_it(tmp_path: Path) -> None:
    (tmp_path / LOG).write_bytes(b'{"kind": "step", "step": 1}\n{"kind": "st')
    assert read_log(tmp_path) == [{"kind": "step", "step": 1}]
    (tmp_path / LOG).write_bytes(b'{"kind": "step", "step": 1}\n\xff\xfe\n' + b"[" * 100_000)
    assert read_log(tmp_path) == [{"kind": "step", "step": 1}]


@pytest.mark.parametrize("line", ["3", "[]", "{}", '{"kind": "step", "step": "1"}'])
def test_a_line_that_is_no_record_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / LOG).write_text(f'{{"kind": "step", "step": 1}}\n{line}\n')
    with pytest.raises(FolderError, match=r"log\.jsonl, line 2 is no record"):
        read_log(tmp_path)


@pytest.mark.parametrize("metadata", [{}, {"state": "{"}, {"state": "[]"}, {"state": "[" * 100_000}])
def test_a_file_that_is_no_state_is_named(tmp_path: Path, metadata: dict[str, str]) -> None:
    write_tensors(tmp_path / STATE, {"a": torch.zeros(1)}, metadata)
    with pytest.raises(ValueError, match=r"training\.safetensors"):
        RunFolder(tmp_path, resume=True).load_state()
