"""Read tokenizer files: tokenizer.json, GPT-2's vocab.json and merges.txt, BERT's vocab.txt, or a hub name."""

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from tokenizers.implementations.bert_wordpiece import BertWordPieceTokenizer

from unmask.errors import UserError

MASK = "<|mask|>"  # the name of a mask token that we add

# Usual names of each special token, the most specific first; tokenizer_config.json has precedence.
ROLES = {
    "mask": ("[MASK]", "<mask>", MASK),
    "pad": ("[PAD]", "<pad>", "<|pad|>"),
    "bos": ("[BOS]", "<s>", "[CLS]", "<|endoftext|>"),
    "eos": ("[EOS]", "</s>", "[SEP]", "<|endoftext|>"),
}


def read_tokenizer_files(path: str | Path) -> tuple[Tokenizer, dict[str, Any]]:
    """A tokenizer and the id of each role (None if it has none; a missing mask is added)."""
    if str(path).startswith("hf:"):
        path = _from_hub(str(path).removeprefix("hf:"))
    path = Path(path)
    if not path.exists():
        raise UserError(f"no tokenizer at {path}: the path does not exist")
    folder = path if path.is_dir() else path.parent
    core = _core(path)
    names = {**_json(folder / "special_tokens_map.json"), **_json(folder / "tokenizer_config.json")}
    roles = {role: _find(core, names.get(f"{role}_token"), usual) for role, usual in ROLES.items()}
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


def _core(path: Path) -> Tokenizer:
    folder = path if path.is_dir() else path.parent
    wanted = "" if path.is_dir() else path.name
    try:
        if wanted.endswith(".json") and wanted != "vocab.json":
            return Tokenizer.from_file(str(path))
        if not wanted and (folder / "tokenizer.json").is_file():
            return Tokenizer.from_file(str(folder / "tokenizer.json"))
        if wanted in ("", "vocab.json", "merges.txt") and (folder / "merges.txt").is_file():
            return gpt2(folder / "vocab.json", folder / "merges.txt")
        if wanted in ("", "vocab.txt") and (folder / "vocab.txt").is_file():
            lowercase = _json(folder / "tokenizer_config.json").get("do_lower_case")
            return bert(folder / "vocab.txt", lowercase=lowercase)
    except UserError:
        raise
    except Exception as error:  # the library raises bare Exception
        raise UserError(f"cannot read the tokenizer at {path}: {error}") from None
    raise UserError(
        f"no tokenizer at {path}. Expected tokenizer.json, or vocab.json with merges.txt (GPT-2), "
        "or vocab.txt (BERT)."
    )


def _find(core: Tokenizer, named: Any, usual: tuple[str, ...]) -> int | None:
    """The id of the token the config names, or of the first usual name that the vocabulary has."""
    if isinstance(named, dict):  # some configs describe the token instead of naming it
        named = named.get("content")
    for name in (named, *usual):
        if name and core.token_to_id(name) is not None:
            return core.token_to_id(name)
    return None


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path} is not valid JSON: {error}") from None


def _from_hub(name: str) -> Path:
    from huggingface_hub import snapshot_download

    wanted = ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.*", "merges.txt"]
    try:
        return Path(snapshot_download(name, allow_patterns=wanted))
    except Exception as error:  # no such repository, no network, no permission: the hub's message says which
        raise UserError(f"cannot fetch the tokenizer {name!r} from the hub: {error}") from None
