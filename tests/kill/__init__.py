"""Commands that are killed, or whose writes fail, at random: `python -m tests.kill`."""
