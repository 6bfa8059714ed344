"""Vocabularies built here: byte, character, bpe, dna, protein, caduceus, text8.

Each ends with `<|endoftext|>` (both bos and eos), `<|pad|>` and, as its last id, `<|mask|>`; caduceus and text8
keep the ids of published models instead.
"""

from collections.abc import Callable, Iterable

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers

from unmask.errors import UserError, unknown
from unmask.text.tokens.alphabets import DNA, PROTEIN, Alphabet
from unmask.text.tokens.tokenizer import Tokenizer

END, PAD, MASK = "<|endoftext|>", "<|pad|>", "<|mask|>"
SPECIALS = [END, PAD, MASK]
BASES = DNA.letters + DNA.any
AMBIGUOUS = "RYSWKMBDHV"  # the IUPAC letters for "one of several bases", written N here
RARE = "BJOUZ"  # one of two amino acids (B, J, Z), or one of the two rare ones (O, U): written X here


def build_tokenizer(kind: str, texts: Iterable[str] = (), *, size: int = 4096) -> Tokenizer:
    """A tokenizer by the name of its kind; `texts` are read only by character and bpe, `size` by bpe."""
    if kind not in KINDS:
        raise unknown("tokenizer", kind, KINDS)
    return character(texts) if kind == "character" else bpe(texts, size) if kind == "bpe" else KINDS[kind]()


def byte() -> Tokenizer:
    """256 bytes, id b for byte b: any text, nothing to train."""
    core = _letterwise(_byte_alphabet())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    return _with_specials(core)


def character(texts: Iterable[str]) -> Tokenizer:
    """Every character of the texts, by code point; encoding any other character is an error."""
    seen: set[str] = set()
    for text in texts:
        seen.update(text)
    if not seen:
        raise UserError("cannot build a character tokenizer: the texts are empty")
    return _with_specials(_letterwise(sorted(seen)))


def dna() -> Tokenizer:
    """A C G T N, in either case; the IUPAC letters for several bases become N, any other is an error."""
    return _sequence(DNA, AMBIGUOUS)


def protein() -> Tokenizer:
    """The 20 amino acids and X, in either case; B, J, O, U and Z become X, anything else is an error."""
    return _sequence(PROTEIN, RARE)


def _sequence(alphabet: Alphabet, others: str) -> Tokenizer:
    """The letters of an alphabet and the one for any of them, as which the others are read."""
    core = _letterwise([*alphabet.letters, alphabet.any])
    upper = [normalizers.Replace(letter.lower(), letter) for letter in alphabet.letters + alphabet.any + others]
    core.normalizer = normalizers.Sequence([*upper, normalizers.Replace(Regex(f"[{others}]"), alphabet.any)])
    return _with_specials(core)


def caduceus() -> Tokenizer:
    """The 12 ids of the published Caduceus and HyenaDNA models: A C G T N in either case, other letters unknown."""
    special = ["[CLS]", "[SEP]", "[BOS]", "[MASK]", "[PAD]", "[RESERVED]", "[UNK]"]
    core = _letterwise([*special, *BASES], unknown="[UNK]")
    core.normalizer = normalizers.Sequence([normalizers.Replace(base.lower(), base) for base in BASES])
    core.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in special])
    return Tokenizer(core, mask=3, pad=4, bos=2, eos=1)


def bpe(texts: Iterable[str], size: int) -> Tokenizer:
    """Byte-level BPE in the manner of GPT-2, trained on the texts; `size` counts every id."""
    smallest = 256 + len(SPECIALS)
    if size < smallest:
        raise UserError(f"a bpe vocabulary needs at least {smallest} ids (256 bytes and special ones), not {size}")
    core = tokenizers.Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size - len(SPECIALS),
        initial_alphabet=_byte_alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(texts, trainer)
    return _with_specials(core)


def text8() -> Tokenizer:
    """The 35 ids of the published text8 models: lower case a to z and space, all else unknown."""
    names = ("CLS", "SEP", "BOS", "EOS", "MASK", "PAD", "RESERVED", "UNK")
    special = [f"[{name}]" for name in names]
    core = _letterwise([*special, *"abcdefghijklmnopqrstuvwxyz "], unknown="[UNK]")
    core.normalizer = normalizers.Lowercase()
    core.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in special])
    ids = {role: special.index(f"[{role.upper()}]") for role in ("mask", "pad", "bos", "eos")}
    return Tokenizer(core, **ids)


KINDS: dict[str, Callable[..., Tokenizer]] = {
    one.__name__: one for one in (byte, character, bpe, dna, protein, caduceus, text8)
}


def _letterwise(alphabet: list[str], *, unknown: str | None = None) -> tokenizers.Tokenizer:
    """A BPE without merges: one id per character, and much faster than a model that splits by a pattern."""
    vocabulary = {letter: id for id, letter in enumerate(alphabet)}
    core = tokenizers.Tokenizer(models.BPE(vocabulary, [], unk_token=unknown))
    core.decoder = decoders.Fuse()
    return core


def _with_specials(core: tokenizers.Tokenizer) -> Tokenizer:
    core.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIALS])
    ids = core.get_vocab(with_added_tokens=True)
    end, pad, mask = (ids[name] for name in SPECIALS)
    return Tokenizer(core, mask, pad, bos=end, eos=end)


def _byte_alphabet() -> list[str]:
    """The library's printable character for each byte: itself in Latin-1, or the next letter from U+0100 on."""
    spare = map(chr, range(256, 512))
    shown = (range(33, 127), range(161, 173), range(174, 256))
    return [chr(value) if any(value in span for span in shown) else next(spare) for value in range(256)]
