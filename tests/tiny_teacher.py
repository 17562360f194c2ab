"""A small Llama trained on a few sentences, with a byte-level tokenizer of its own: a teacher that takes a second to make."""

from pathlib import Path

import tokenizers
import torch
from tiny import sentences
from tokenizers import decoders, models, pre_tokenizers, trainers

END, BEGIN = "<|end|>", "<|begin|>"
CHAT = "{% for message in messages %}{{ bos_token + message['content'] + eos_token }}{% endfor %}"


def tiny_tokenizer() -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=[END, BEGIN],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator([" ".join(sentence) for sentence in sentences(100, 3)], trainer)
    return backend


def write_tiny_teacher(folder: Path, *, chat: bool = False, num_steps: int = 80) -> None:
    """Leaves model and tokenizer in `folder` as transformers does."""
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    backend = tiny_tokenizer()
    begin, end = backend.token_to_id(BEGIN), backend.token_to_id(END)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = LlamaForCausalLM(
            LlamaConfig(
                # As in published models, the output layer is wider than the vocabulary.
                vocab_size=backend.get_vocab_size() + 5,
                hidden_size=32,
                intermediate_size=64,
                num_hidden_layers=1,
                num_attention_heads=2,
                max_position_embeddings=128,
                bos_token_id=begin,
                eos_token_id=end,
                pad_token_id=end,
            )
        )
    texts = [[begin, *backend.encode(" ".join(words)).ids, end] for words in sentences(64, 4)]
    width = max(map(len, texts))
    ids = torch.tensor([text + [end] * (width - len(text)) for text in texts])
    labels = torch.tensor([text + [-100] * (width - len(text)) for text in texts])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(num_steps):
        optimizer.zero_grad()
        model(input_ids=ids, labels=labels).loss.backward()
        optimizer.step()
    model.save_pretrained(folder)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=END, bos_token=BEGIN)
    if chat:
        tokenizer.chat_template = CHAT
    tokenizer.save_pretrained(folder)
