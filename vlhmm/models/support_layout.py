"""What follows from a support, where it moves to a device with the model."""

from __future__ import annotations

from torch import Tensor, nn

from vlhmm.ops.emission import WordLayout, emitting_states, word_layout
from vlhmm.support import Support


class SupportLayout(nn.Module):
    """The order of words, and which states emit any. Buffers that are not saved, since they follow from the support."""

    def __init__(self, support: Support) -> None:
        super().__init__()
        layout = word_layout(support.group_of_word, support.num_groups)
        emitting = emitting_states(support)
        self._bucket_shapes, self._tile_words = layout.shapes, layout.tile_words
        self.register_buffer("_bucket_words", layout.words, persistent=False)
        self.register_buffer("_bucket_groups", layout.groups, persistent=False)
        self.register_buffer("_word_tiles", layout.tiles, persistent=False)
        self.register_buffer("_group_spans", layout.spans, persistent=False)
        self.register_buffer("emitting", None if emitting.all() else emitting, persistent=False)
        self._bucket_words: Tensor
        self._bucket_groups: Tensor
        self._word_tiles: Tensor
        self._group_spans: Tensor
        self.emitting: Tensor | None
        """Whether each state emits a word; None: all do."""

    def words(self) -> WordLayout:
        return WordLayout(
            self._bucket_words,
            self._bucket_groups,
            self._bucket_shapes,
            self._word_tiles,
            self._group_spans,
            self._tile_words,
        )
