"""Thousands of small ugly HMMs through every public query, against enumeration: `python -m tests.soak --help`."""
