"""Keywords in the sentences of a language model: guided by an HMM, hard masking, rejection, and nothing at all."""
