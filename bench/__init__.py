"""The benchmark: ours, the peers that are installed, and what the device allows, in one run."""
