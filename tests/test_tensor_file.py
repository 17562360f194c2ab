"""Tensor files: what is written comes back, any change is found, and nothing is taken for what it is not."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from vlhmm import tensor_file
from vlhmm.data.checksums import UncheckedFileWarning
from vlhmm.tensor_file import FolderError, read_tensor_header, read_tensors, require_tensors, write_tensors

TENSORS = {
    "a": torch.arange(6.0).view(2, 3),
    "b": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    "empty": torch.empty(0, 4, dtype=torch.int64),
    "one": torch.tensor(True),
}


def test_what_is_written_comes_back(tmp_path: Path) -> None:
    write_tensors(tmp_path / "x", TENSORS, {"about": "é"})
    tensors, metadata = read_tensors(tmp_path / "x")
    assert tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert torch.equal(tensors[name], tensor)
        assert tensors[name].dtype == tensor.dtype
    assert metadata["about"] == "é"
    header = read_tensor_header(tmp_path / "x")
    assert header.shapes == {"a": (2, 3), "b": (2,), "empty": (0, 4), "one": ()}
    assert (header.num_elements, header.num_bytes) == (9, 29)


def test_every_changed_byte_is_found(tmp_path: Path) -> None:
    """But for white space that pads the header, which says nothing."""
    write_tensors(tmp_path / "x", TENSORS, {"about": "text"})
    content = (tmp_path / "x").read_bytes()
    silent = []
    for position in range(len(content)):
        changed = bytearray(content)
        changed[position] ^= 1
        (tmp_path / "y").write_bytes(changed)
        try:
            tensors, metadata = read_tensors(tmp_path / "y")
        except FolderError:
            continue
        silent.append(content[position : position + 1])
        assert all(torch.equal(tensors[name], tensor) for name, tensor in TENSORS.items())
        assert metadata["about"] == "text"
    assert set(silent) <= {b" "}


def test_a_checksum_can_be_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tensors(tmp_path / "x", TENSORS, {})
    content = bytearray((tmp_path / "x").read_bytes())
    content[-20] ^= 1
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(FolderError, match=r"damaged.*SHA-256"):
        read_tensors(tmp_path / "x")
    read_tensors(tmp_path / "x", verify=False)
    monkeypatch.setenv("VLHMM_VERIFY", "0")
    read_tensors(tmp_path / "x")
    with pytest.raises(FolderError, match="SHA-256"):
        read_tensors(tmp_path / "x", verify=True)
    monkeypatch.setenv("VLHMM_VERIFY", "no")
    with pytest.raises(ValueError, match="VLHMM_VERIFY is 'no'"):
        read_tensors(tmp_path / "x")


def test_a_file_of_version_0_1_is_read_with_a_notice(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "x", {"format": "vlhmm", "version": "1"})
    with pytest.warns(UncheckedFileWarning, match="has no checksum"):
        tensors, _ = read_tensors(tmp_path / "x")
    assert torch.equal(tensors["a"], TENSORS["a"])


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"format": "vlhmm", "version": "2"}, "lacks its checksum"),
        ({"format": "vlhmm", "version": "3"}, "has file version 3"),
        ({"format": "vlhmm"}, "has file version None"),
        ({"format": "pt", "version": "1"}, "another program"),
        (None, "another program"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, metadata: dict[str, str] | None, message: str) -> None:
    save_file(TENSORS, tmp_path / "x", metadata)
    with pytest.raises(FolderError, match=message):
        read_tensors(tmp_path / "x")


def test_a_type_that_is_never_written_is_refused(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(2, dtype=torch.complex64)}, tmp_path / "x", {"format": "vlhmm", "version": "1"})
    with pytest.raises(FolderError, match="has a in C64"):
        read_tensors(tmp_path / "x")


def test_what_does_not_fit_in_memory_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tensors(tmp_path / "x", TENSORS, {})
    monkeypatch.setattr("vlhmm.memory.available_bytes", lambda device: 28)
    monkeypatch.setattr(tensor_file, "content_sha256", lambda *_: pytest.fail("read"))
    with pytest.raises(ValueError, match="x would take"):
        read_tensors(tmp_path / "x")


def test_tensors_are_needed_by_name_shape_and_type(tmp_path: Path) -> None:
    write_tensors(tmp_path / "x", TENSORS, {})
    header = read_tensor_header(tmp_path / "x")
    require_tensors(tmp_path / "x", header, TENSORS)
    for changes, message in (
        ({"more": torch.zeros(1)}, "lacks more"),
        ({"a": torch.zeros(3, 2)}, r"a has shape \(2, 3\), \(3, 2\) is needed"),
        ({"a": torch.zeros(2, 3).double()}, r"a in torch\.float32, but torch\.float64 is needed"),
    ):
        with pytest.raises(FolderError, match=message):
            require_tensors(tmp_path / "x", header, TENSORS | changes)
    with pytest.raises(FolderError, match="has a, b, empty and 1 more too much"):
        require_tensors(tmp_path / "x", header, {})
