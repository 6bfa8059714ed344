"""The recorded Caduceus networks as their authors publish them: tied tensors and the classifier left out."""

import json
from pathlib import Path

from model.golden import dna_folder


def published(name: str, folder: Path, *, tied: bool = False, **keys) -> Path:
    """A folder with config.json and model.safetensors; `tied` keeps the second copy of tied tensors."""
    shared = name != "ph_untied_mult"

    def without(key: str) -> bool:
        projection = key.endswith(("mamba_rev.in_proj.weight", "mamba_rev.out_proj.weight")) and shared
        head = key.startswith("lm_head") and key.endswith("weight")
        return key.startswith("score.") or (not tied and (projection or head))

    dna_folder(f"caduceus_{name}", folder, without=without)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_type": "caduceus"} | keys))
    return folder
