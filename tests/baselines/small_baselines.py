"""Small neural baselines of every kind, in float64, and settings that train them in a second."""

from dataclasses import replace

import torch

from vlhmm.baselines import (
    AWDLSTMSettings,
    Baseline,
    BaselineSettings,
    BuysHMMSettings,
    FeedForwardSettings,
    LSTMSettings,
    build_baseline,
)

HMM = BuysHMMSettings(num_states=8, batch_size=8, window=16, epochs=3, checks_per_epoch=1, learning_rate=0.05)

KINDS: dict[str, BaselineSettings] = {
    "feedforward": FeedForwardSettings(
        dim=12, order=4, batch_size=8, window=16, epochs=3, checks_per_epoch=2, learning_rate=0.02
    ),
    "lstm": LSTMSettings(
        dim=12, batch_size=8, window=16, epochs=3, checks_per_epoch=2, learning_rate=0.03, dropout=0.1
    ),
    "awd-lstm": AWDLSTMSettings(
        embedding_dim=10,
        hidden_dim=14,
        num_layers=2,
        embedding_dropout=0.05,
        input_dropout=0.1,
        hidden_dropout=0.1,
        output_dropout=0.1,
        weight_dropout=0.2,
        activation_penalty=0.1,
        change_penalty=0.1,
        batch_size=8,
        window=20,
        epochs=12,
        learning_rate=5.0,
        clip=1.0,
        average_after=8,
    ),
    "hmm": HMM,
    "hmm-add": replace(HMM, transition_input="add"),
    "hmm-gate": replace(HMM, transition_input="gate"),
    "hmm-delayed-transition": replace(HMM, transition_input="add", delay_transition_softmax=True),
    "hmm-sigmoid": replace(HMM, transition_input="gate", delay_transition_softmax=True, state="sigmoid", epochs=6),
    "hmm-rnn": replace(HMM, transition_input="add", delay_transition_softmax=True, delay_emission_softmax=True),
    "hmm-sigmoid-rnn": replace(HMM, delay_transition_softmax=True, state="sigmoid", delay_emission_softmax=True),
}


def small(name: str, num_words: int = 9, seed: int = 0) -> Baseline:
    """A baseline with random weights, in float64."""
    return build_baseline(KINDS[name], num_words, torch.Generator().manual_seed(seed)).double()


def random_tokens(num_words: int, *shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(num_words, shape, generator=torch.Generator().manual_seed(seed))
