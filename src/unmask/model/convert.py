"""Published checkpoints to ours and back. The weights are the same file, so both ways are exact to the bit."""

import shutil
from pathlib import Path

from unmask.errors import UserError, unknown
from unmask.model.appearing import appearing
from unmask.model.checkpoint import Model, load, write_note
from unmask.model.config import OURS, is_published, read_config
from unmask.model.weights import FILE

FORMATS = ("unmask", "official")
# Files that other programs wrote beside the weights; code (*.py) stays behind, for it is never run.
TEXT_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "merges.txt",
    "vocab.json",
    "vocab.txt",
)


def convert(source: str | Path, target: str | Path, *, to: str = "unmask") -> Model:
    """Check a checkpoint and write it anew: `to` ours, with a proof, or to the official layout, without ours."""
    if to not in FORMATS:
        raise unknown("checkpoint format", to, FORMATS)
    target = Path(target)
    if target.exists():
        raise UserError(f"{target} exists already: give a folder that does not.")
    model = load(source)
    assert model.folder is not None
    config = read_config(model.folder)
    if to == "official":
        if not is_published(config):
            ours = ", ".join(key for key in OURS if key in config)
            raise UserError(f"the official layout has no such network: {source} needs {ours} in its config.json.")
        if model.objective not in ("mdlm", "ar"):
            raise UserError(f"the official layout cannot say that the objective is {model.objective!r}.")
    with appearing(target) as draft:
        for name in (FILE, "config.json", *TEXT_FILES):
            if (model.folder / name).is_file():
                shutil.copyfile(model.folder / name, draft / name)
        if to == "unmask":
            if model.tokenizer is not None and not any((draft / name).exists() for name in TEXT_FILES):
                model.tokenizer.save(draft)
            said = {
                "objective": model.objective,
                "step": model.step,
                "ema": model.ema,
                "settings": dict(model.settings),
            }
            write_note(draft, said, model.network, mask=model.mask, tokenizer=model.tokenizer)
    return model
