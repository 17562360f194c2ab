"""A small decoder-only transformer, built and named as Llama is: a teacher that is trained on the very text it is to teach."""

from vlhmm.distillation.decoder.folder import is_decoder_folder, load_decoder, save_decoder
from vlhmm.distillation.decoder.model import Decoder, decoder_perplexity
from vlhmm.distillation.decoder.settings import DecoderSettings, DecoderTraining
from vlhmm.distillation.decoder.training import DecoderEvent, Snapshot, TrainedDecoder, decoder_training, train_decoder

__all__ = [
    "Decoder",
    "DecoderEvent",
    "DecoderSettings",
    "DecoderTraining",
    "Snapshot",
    "TrainedDecoder",
    "decoder_perplexity",
    "decoder_training",
    "is_decoder_folder",
    "load_decoder",
    "save_decoder",
    "train_decoder",
]
