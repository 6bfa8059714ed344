"""Read tokenizer files: tokenizer.json, GPT-2's vocab.json and merges.txt, BERT's vocab.txt, or a hub name."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from tokenizers.implementations.bert_wordpiece import BertWordPieceTokenizer

from unmask import hub
from unmask.errors import UserError
from unmask.text.tokens.limits import BYTES, check_file, check_growth, check_ids
from unmask.untrusted import parse_json, read_text

TOKENIZER_FILES = ("tokenizer.json", "merges.txt", "vocab.txt")  # one of them is in the folder of a tokenizer
MASK = "<|mask|>"  # the name of a mask token that we add

# Usual names of each special token, the most specific first; tokenizer_config.json has precedence.
ROLES = {
    "mask": ("[MASK]", "<mask>", MASK),
    "pad": ("[PAD]", "<pad>", "<|pad|>"),
    "bos": ("[BOS]", "<s>", "[CLS]", "<cls>", "<|endoftext|>"),
    "eos": ("[EOS]", "</s>", "[SEP]", "<eos>", "<|endoftext|>"),
}
ALSO = {"bos": "cls", "eos": "sep"}  # what the configs of encoders call the token before and after a text
HALF_PAIR = re.compile("[\ud800-\udfff]")  # half of a surrogate pair, which JSON can write and UTF-8 cannot


def read_tokenizer_files(path: str | Path, *, mask: int | None = None) -> tuple[Tokenizer, dict[str, Any]]:
    """A tokenizer and the id of each role (None: it has none; a missing mask is added); `mask`: its id, if known."""
    if str(path).startswith("hf:"):
        path = _from_hub(str(path).removeprefix("hf:"))
    path = Path(path)
    if not path.exists():
        raise UserError(f"no tokenizer at {path}: the path does not exist")
    folder = path if path.is_dir() else path.parent
    core = _core(path)
    check_ids(list(core.get_vocab(with_added_tokens=True).values()))
    names = {**_json(folder / "special_tokens_map.json"), **_json(folder / "tokenizer_config.json")}
    named = {role: _token_for_role(names, f"{role}_token", folder) for role in ROLES}
    named |= {role: named[role] or _token_for_role(names, f"{also}_token", folder) for role, also in ALSO.items()}
    roles = {role: _find(core, named[role], usual) for role, usual in ROLES.items()}
    if mask is not None and core.id_to_token(mask) is not None:
        roles["mask"] = mask
    if roles["mask"] == roles["pad"]:  # a config that reuses one token for both
        roles["mask"] = _find(core, None, ROLES["mask"])
    if roles["mask"] is None or roles["mask"] == roles["pad"]:
        roles["mask"] = add_mask(core)
    return core, roles


def add_mask(core: Tokenizer) -> int:
    """Add a mask token to the vocabulary: a new last id, or an unused id."""
    taken = core.get_vocab(with_added_tokens=True)
    core.add_special_tokens([AddedToken(MASK, special=True, normalized=False)])
    added = core.token_to_id(MASK)
    if added is None or MASK in taken or added in taken.values():
        raise UserError(f"cannot add a mask token: {MASK} would share id {added} with another token")
    return added


def gpt2(vocabulary: str | Path, merges: str | Path) -> Tokenizer:
    """GPT-2's byte-level BPE from its two files.

    The library's ByteLevelBPETokenizer gives the same ids but is serialised differently ("" for no prefix, where
    GPT-2's tokenizer.json has null): the fingerprint would change, and prepared data and checkpoints be refused.
    """
    core = Tokenizer(models.BPE.from_file(str(vocabulary), str(merges)))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken("<|endoftext|>", special=True, normalized=False)])
    return core


def bert(vocabulary: str | Path, *, lowercase: bool | None = None) -> Tokenizer:
    """BERT's WordPiece from its vocabulary; without `lowercase`, a vocabulary without capitals is lower case."""
    words = models.WordPiece.read_file(str(vocabulary))
    special = [word for word in words if word.startswith("[") and word.endswith("]") and len(word) > 2]
    if lowercase is None:
        lowercase = not any(word != word.lower() for word in words if word not in special)
    return Tokenizer.from_str(BertWordPieceTokenizer(words, lowercase=lowercase).to_str())


def esm(vocabulary: str | Path) -> Tokenizer:
    """ESM's amino acids, one id per letter, from its vocabulary; spaces separate letters, other text is unknown."""
    words = {word.strip(): id for id, word in enumerate(Path(vocabulary).read_text(encoding="utf-8").splitlines())}
    core = Tokenizer(models.BPE(words, [], unk_token="<unk>", fuse_unk=True))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    core.decoder = decoders.Fuse()
    special = [word for word in words if len(word) > 1]
    core.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in special])
    if {"<cls>", "<eos>"} <= words.keys():
        ends = [(name, words[name]) for name in ("<cls>", "<eos>")]
        core.post_processor = processors.TemplateProcessing("<cls> $A <eos>", "<cls> $A <eos> $B <eos>", ends)
    return core


def _core(path: Path) -> Tokenizer:
    folder = path if path.is_dir() else path.parent
    wanted = "" if path.is_dir() else path.name
    with told_plainly(f"cannot read the tokenizer at {path}"):
        if wanted.endswith(".json") and wanted != "vocab.json":
            return described_in(path)
        if not wanted and (folder / "tokenizer.json").is_file():
            return described_in(folder / "tokenizer.json")
        if wanted in ("", "vocab.json", "merges.txt") and (folder / "merges.txt").is_file():
            for name in ("vocab.json", "merges.txt"):
                read_text(folder / name, limit=BYTES)  # refuses what is not a regular file of that size
            return gpt2(folder / "vocab.json", folder / "merges.txt")
        if wanted in ("", "vocab.txt") and (folder / "vocab.txt").is_file():
            read_text(folder / "vocab.txt", limit=BYTES)
            config = _json(folder / "tokenizer_config.json")
            if config.get("tokenizer_class") == "EsmTokenizer":
                return esm(folder / "vocab.txt")
            lowercase = config.get("do_lower_case")
            if lowercase not in (True, False, None):
                raise UserError(f"do_lower_case in tokenizer_config.json is {lowercase!r:.40}, not true or false.")
            return bert(folder / "vocab.txt", lowercase=lowercase)
    raise UserError(
        f"no tokenizer at {path}. Expected tokenizer.json, or vocab.json with merges.txt (GPT-2), "
        "or vocab.txt (BERT)."
    )


@contextmanager
def told_plainly(doing: str) -> Iterator[None]:
    """Turn errors of the library into a UserError; a panic in its Rust code is no `Exception`."""
    try:
        yield
    except (MemoryError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        raise UserError(f"{doing}: {str(error)[:500].rstrip('.')}.") from None


def described_in(path: Path) -> Tokenizer:
    """The tokenizer of a tokenizer.json, within the limits."""
    text = read_text(path, limit=BYTES)
    description = parse_json(text, str(path))
    if not isinstance(description, dict):
        raise UserError(f"{path} should hold a JSON object, not a {type(description).__name__}.")
    check_file(description)
    core = Tokenizer.from_str(text)
    check_growth(json.loads(core.to_str()))
    return core


def _token_for_role(names: dict[str, Any], key: str, folder: Path) -> str | None:
    named = names.get(key)
    if isinstance(named, dict):  # some configs describe the token instead of naming it
        named = named.get("content")
    if named is not None and (not isinstance(named, str) or HALF_PAIR.search(named)):
        raise UserError(f"the tokenizer's configuration in {folder} says {key} = {named!r:.40}: it must be a text.")
    return named


def _find(core: Tokenizer, named: str | None, usual: tuple[str, ...]) -> int | None:
    """The id of the token the config names, or of the first usual name that the vocabulary has."""
    for name in (named, *usual):
        if name and core.token_to_id(name) is not None:
            return core.token_to_id(name)
    return None


def _json(path: Path) -> dict[str, Any]:
    """A config of the tokenizer. Numbers may be of any size: other libraries write 10³⁰ for "no limit"."""
    content = parse_json(read_text(path), str(path), strict=False) if path.is_file() else {}
    if not isinstance(content, dict):
        raise UserError(f"{path} should hold a JSON object, not a {type(content).__name__}.")
    return content


def _from_hub(name: str) -> Path:
    wanted = ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.*", "merges.txt"]
    try:
        return hub.fetch(name, wanted, before="hf:")
    except UserError:
        raise
    except Exception as error:  # no such repository, no network, no permission: the hub's message says which
        raise UserError(f"cannot fetch the tokenizer {name!r} from the hub: {error}") from None
