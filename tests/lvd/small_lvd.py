"""What the tests of distillation share: a decoder trained on the tiny corpus, settings, and teachers that are broken."""

from dataclasses import dataclass

import torch
from torch import Tensor

from vlhmm import Corpus
from vlhmm.decoder import Decoder, DecoderSettings, DecoderTraining, TrainedDecoder, decoder_training
from vlhmm.lvd import LVDSettings
from vlhmm.train_settings import TrainSettings

LVD = LVDSettings(cluster_tokens=640, joint_tokens=512, iterations=8)
TRAIN = TrainSettings(
    learning_rate=0.05, epochs=1, batch_size=4, window=16, windows="independent", state_dropout=0.0, checks_per_epoch=1
)


def small_teacher(corpus: Corpus, tokens: int = 6_000) -> Decoder:
    settings = DecoderSettings(dim=16, layers=2, heads=2)
    training = DecoderTraining(tokens=tokens, learning_rate=1e-2, batch_size=8, window=16, checks=1)
    last = list(decoder_training(corpus, settings, training))[-1]
    assert isinstance(last, TrainedDecoder)
    return last.decoder


@dataclass(frozen=True)
class TableTeacher:
    """Every token has one vector, whatever its context; the first place has zeros."""

    table: Tensor
    name: str = "table"
    num_layers: int = 1
    longest: int = 1000
    sees_ahead: bool = False

    @property
    def num_words(self) -> int:
        return self.table.shape[0]

    @property
    def device(self) -> torch.device:
        return self.table.device

    def hidden(self, tokens: Tensor, layer: int) -> Tensor:
        first = torch.zeros(tokens.shape[0], 1, self.table.shape[1])
        return torch.cat([first, self.table[tokens]], dim=1)
