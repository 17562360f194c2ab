"""What a `tokenizer.json` says: its EOS and unknown tokens, and whether it is sound."""

from collections.abc import Mapping
from typing import Any, Final

import tokenizers

EOS: Final = "<eos>"
UNK: Final = "<unk>"

# Names that end a text in published tokenizers, tried in this order where the file itself does not say.
KNOWN_EOS: Final = (
    EOS,
    "</s>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|eot_id|>",
    "<|im_end|>",
    "[SEP]",
    "[EOS]",
)


# Of a tokenizer.json; those of the largest vocabularies have 40 MB.
MAX_TOKENIZER_BYTES: Final = 1 << 28


def find_eos(post_processor: Any, ids: Mapping[str, int]) -> int | None:
    """The id of the EOS token: the last one of the template, or one of a usual name; None where there is none."""
    template = post_processor.get("single") if isinstance(post_processor, dict) else None
    last = template[-1] if isinstance(template, list) and template else None
    special = last.get("SpecialToken") if isinstance(last, dict) else None
    name = special.get("id") if isinstance(special, dict) else None
    known = (name, *KNOWN_EOS) if isinstance(name, str) else KNOWN_EOS
    return next((ids[name] for name in known if name in ids), None)


def find_unk(model: dict[str, Any], ids: Mapping[str, int], vocab_size: int) -> int | None:
    """The id of the token of unknown words; None where there is none."""
    unk = model.get("unk_token")
    if isinstance(unk, str):
        return ids.get(unk)
    # Unigram models give the number instead of the name.
    number = model.get("unk_id")
    return number if type(number) is int and 0 <= number < vocab_size else None


def check_merges(model: dict[str, Any]) -> None:
    """A second half without the prefix of second halves makes the backend abort the process: it cuts the prefix off unseen."""
    prefix, merges = model.get("continuing_subword_prefix"), model.get("merges")
    if not isinstance(prefix, str) or not prefix or not isinstance(merges, list):
        return
    for merge in merges:
        halves = merge.split(" ") if isinstance(merge, str) else merge
        second = halves[1] if isinstance(halves, list) and len(halves) == 2 else None
        if not isinstance(second, str) or not second.startswith(prefix):
            raise ValueError(
                f"this is no tokenizer.json: the merge {str(merge)[:80]!r} has no second half that begins with {prefix[:80]!r}; "
                "give one written by `tokenizers`"
            )


def try_out(backend: tokenizers.Tokenizer) -> None:
    """Some damage shows when a text is first read: better here than in the middle of one."""
    try:
        backend.encode("a A1 é\uff21中", add_special_tokens=False)
    # A text may have words that are unknown; a panic is none of these.
    except Exception:
        return
