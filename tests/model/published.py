"""The recorded networks of published families, as folders that a user may have, with tokenizers of single letters."""

import json
import shutil
from pathlib import Path

import numpy as np
import tokenizers
import torch

GOLDEN = Path(__file__).parents[1] / "golden" / "dialects"
NAMED = {"diffullama": "diffullama", "a2d_qwen3": "a2d-mdlm"}  # whose files do not say what they are


def cases(name):
    return {key: torch.from_numpy(value) for key, value in np.load(GOLDEN / name / "cases.npz").items()}


def published(name, folder, *, mask=True, **keys):
    """A copy of a recorded folder with the tiny network's mask in its config.json."""
    shutil.copytree(GOLDEN / name, folder)
    path = folder / "config.json"
    known = {} if not mask or name in ("smdm", "sedd") else {"mask_token_id": int(cases(name)["mask_id"])}
    path.write_text(json.dumps(json.loads(path.read_text()) | known | keys))
    return folder


def letters(folder, size):
    """A tokenizer of single letters with an end token and without a mask, as the published ones are."""
    pieces = [chr(33 + id) for id in range(size - 1)]
    core = tokenizers.Tokenizer(tokenizers.models.BPE({piece: id for id, piece in enumerate(pieces)}, []))
    core.decoder = tokenizers.decoders.Fuse()
    core.add_special_tokens([tokenizers.AddedToken("<|endoftext|>", special=True, normalized=False)])
    core.save(str(folder / "tokenizer.json"))
    return folder


AMINO_ACIDS = ["<cls>", "<pad>", "<eos>", "<unk>", *"LAGVSERTIDPKQNFYMHWCXBUZO.-", "<null_1>", "<mask>"]
IDS = {  # of the tokenizers that the folders get
    "llada": 111,
    "dream": 119,
    "diffugpt": 100,
    "diffullama": 110,
    "a2d_qwen3": 99,
    "sdar": 89,
    "fast_dllm_v2": 99,
    "smdm": 96,
    "sedd": 60,
    "duo": 58,
}


def complete(name, folder, **keys):
    """A recorded folder with a tokenizer, which says what it is."""
    known = {"unmask_dialect": NAMED[name]} if name in NAMED else {}
    published(name, folder, mask=name != "duo", **known | keys)
    if name == "dplm":
        (folder / "vocab.txt").write_text("\n".join(AMINO_ACIDS))
        (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "EsmTokenizer"}')
        return folder
    return letters(folder, IDS[name])
