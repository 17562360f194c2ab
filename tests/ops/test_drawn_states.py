"""The draw by its kernel, interpreted here or on a GPU, takes the states that the library's top k takes."""

import pytest
import torch
from kernels import DEVICES

from vlhmm.models import draw_kept
from vlhmm.ops.state_rows.drawn import drawn_states_by_kernel, reference


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("blocks", [1, 3])
@pytest.mark.parametrize(
    ("states", "count"), [(2, 1), (7, 1), (7, 6), (32, 16), (37, 36), (37, 5), (512, 128), (1025, 700), (8192, 8191)]
)
def test_the_states_are_those_of_the_largest_keys(blocks: int, states: int, count: int, device: str) -> None:
    keys = torch.rand(blocks, states, generator=torch.Generator().manual_seed(states + count)).to(device)
    ranked = keys.sort(dim=1, descending=True).values
    # Were the last that is taken equal to the next, the library could take either.
    assert (ranked[:, count - 1] > ranked[:, count]).all()
    assert torch.equal(drawn_states_by_kernel(keys, count), reference.drawn_states(keys, count))


@pytest.mark.parametrize("device", DEVICES)
def test_keys_of_every_size_are_ordered(device: str) -> None:
    """From 0 and the smallest number of all, by way of those that differ in their last bit, to the largest."""
    bits = [0, 1, 2, 3, 0x007FFFFF, 0x00800000, 0x33800000, 0x3F7FFFFE, 0x3F7FFFFF, 0x3F800000, 0x7F7FFFFF]
    order = torch.randperm(len(bits), generator=torch.Generator().manual_seed(0))
    keys = torch.tensor(bits, dtype=torch.int32)[order].view(torch.float32)[None].to(device)
    for count in range(1, len(bits)):
        largest = (order >= len(bits) - count).nonzero()[:, 0]
        assert drawn_states_by_kernel(keys, count)[0].tolist() == largest.tolist()


@pytest.mark.parametrize("device", DEVICES)
def test_of_equal_keys_the_first_are_taken(device: str) -> None:
    keys = torch.tensor([[0.5, 0.2, 0.5, 0.7, 0.5], [0.0, 0.0, 0.0, 0.0, 0.0]], device=device)
    assert drawn_states_by_kernel(keys, 3).tolist() == [[0, 2, 3], [5, 6, 7]]
    assert drawn_states_by_kernel(keys, 1).tolist() == [[3], [5]]


@pytest.mark.parametrize("device", DEVICES)
def test_what_a_place_held_before_is_overwritten(device: str) -> None:
    keys = torch.rand(3, 7, generator=torch.Generator().manual_seed(0)).to(device)
    place = torch.full((3, 4), -1, device=device)
    assert drawn_states_by_kernel(keys, 4, place) is place
    assert torch.equal(place, reference.drawn_states(keys, 4))


@pytest.mark.gpu
@pytest.mark.parametrize(("states", "dropout"), [(256, 0.5), (512, 0.75), (300, 0.01), (1000, 0.999)])
def test_on_a_gpu_a_generator_draws_what_the_library_draws(states: int, dropout: float) -> None:
    ours, theirs = (torch.Generator("cuda").manual_seed(states) for _ in range(2))
    for _ in range(3):
        kept = draw_kept(128, states, dropout, ours, "cuda")
        keys = torch.rand(128, states, generator=theirs, device="cuda")
        assert kept is not None
        # Equal keys are rare; where the library's k-th and next are, it may take either.
        ranked = keys.sort(dim=1, descending=True).values
        count = kept.states.shape[1]
        clear = ranked[:, count - 1] > ranked[:, count]
        assert clear.float().mean() > 0.9
        assert torch.equal(kept.states[clear], reference.drawn_states(keys, count)[clear])
    assert torch.equal(ours.get_state(), theirs.get_state())
