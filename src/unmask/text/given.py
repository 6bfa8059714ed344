"""Text that a person gives to be continued or completed: it must survive the way to tokens."""

from unmask.errors import UserError
from unmask.text.tokenizer import Tokenizer


def encode_given(tokenizer: Tokenizer, text: str) -> list[int]:
    """The ids of a text. Vocabularies with an unknown token would change it in silence: that is an error here."""
    ids = tokenizer.encode(text)
    unknown = getattr(tokenizer.core.model, "unk_token", None)
    lost = None if unknown is None else tokenizer.core.token_to_id(unknown)
    if lost is None or lost not in ids:
        return ids
    encoding = tokenizer.core.encode(text, add_special_tokens=False)
    first, last = encoding.offsets[encoding.ids.index(lost)]
    raise UserError(
        f"the tokenizer has no token for {text[first:last]!r}: the model would see {unknown} in its place. "
        "Remove it from the text, or use a model whose tokenizer covers it."
    )
