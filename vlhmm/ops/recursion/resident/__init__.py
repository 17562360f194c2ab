"""The recursion of a dense HMM of up to a thousand states on a GPU, the tile held on the chip."""
