"""Export: what transformers needs beside a vocabulary to read texts as an encoder does.

Special tokens by role, the names of the network's inputs, its longest row, and a template: `[CLS] text [SEP]`, and
`[CLS] one [SEP] other [SEP]` for a pair, of which RoBERTa has two tokens between the texts.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers

from unmask.untrusted import parse_json, read_text

CONFIG, CLASS = "tokenizer_config.json", "PreTrainedTokenizerFast"
UNKNOWN = ("[UNK]", "<unk>")  # usual names of the token for unknown text


@dataclass(frozen=True)
class Inputs:
    """What a network reads."""

    longest: int | None = None  # most tokens of a row; None: any number
    segments: bool = False  # whether it tells the second text of a pair from the first
    separators: int = 1  # tokens between the texts of a pair


def separators_in(core: tokenizers.Tokenizer) -> int:
    """Tokens that the tokenizer's own template puts between the texts of a pair; 0: it has no template."""
    own = core.post_processor
    return 0 if own is None else own.num_special_tokens_to_add(True) - own.num_special_tokens_to_add(False)


def with_template(core: tokenizers.Tokenizer, first: int, last: int, inputs: Inputs) -> tokenizers.Tokenizer:
    """A copy that frames texts and pairs; a tokenizer that does so already keeps its own template."""
    if separators_in(core):
        return core
    names = {id: str(core.id_to_token(id)) for id in (first, last)}
    kind = int(inputs.segments)  # of the second text
    begin, end = [piece(names[first]), text("A")], [text("B", kind), piece(names[last], kind)]
    template = {
        "type": "TemplateProcessing",
        "single": [*begin, piece(names[last])],
        "pair": [*begin, *[piece(names[last])] * inputs.separators, *end],
        "special_tokens": {name: {"id": name, "ids": [id], "tokens": [name]} for id, name in names.items()},
    }
    whole = json.loads(core.to_str())
    own = whole["post_processor"]  # one that frames nothing, such as GPT-2's
    whole["post_processor"] = template if own is None else {"type": "Sequence", "processors": [own, template]}
    return tokenizers.Tokenizer.from_str(json.dumps(whole))


def piece(name: str, kind: int = 0) -> dict[str, Any]:
    return {"SpecialToken": {"id": name, "type_id": kind}}


def text(name: str, kind: int = 0) -> dict[str, Any]:
    return {"Sequence": {"id": name, "type_id": kind}}


def unknown_token(core: tokenizers.Tokenizer) -> str | None:
    """The token for unknown text, by the model or by its usual names."""
    model = json.loads(core.to_str())["model"]
    if model.get("unk_token"):
        return str(model["unk_token"])
    if model.get("unk_id") is not None:
        return core.id_to_token(model["unk_id"])
    return next((name for name in UNKNOWN if core.token_to_id(name) is not None), None)


def config_of(names: dict[str, str], unknown: str | None, inputs: Inputs | None) -> dict[str, Any]:
    """tokenizer_config.json of a tokenizer; with `inputs`, of an encoder's."""
    config: dict[str, Any] = {"tokenizer_class": CLASS, **names}
    if unknown is not None:
        config["unk_token"] = unknown
    if inputs is None or not {"bos_token", "eos_token"} <= names.keys():
        return config
    kinds = ["token_type_ids"] if inputs.segments else []
    config |= {"cls_token": names["bos_token"], "sep_token": names["eos_token"]}
    config["model_input_names"] = ["input_ids", *kinds, "attention_mask"]
    if inputs.longest is not None:
        config["model_max_length"] = inputs.longest
    return config


def is_partial(folder: Path) -> bool:
    """Whether a folder has a config as earlier versions wrote it for every network, without a network's inputs."""
    if not (folder / CONFIG).is_file():
        return False
    config = parse_json(read_text(folder / CONFIG), str(folder / CONFIG), strict=False)
    return isinstance(config, dict) and config.get("tokenizer_class") == CLASS and "model_input_names" not in config
