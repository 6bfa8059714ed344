"""A checkpoint that transformers reads without unmask: with `modeling_unmask.py` beside it, copied as it is."""

import shutil
from pathlib import Path

from unmask.errors import UserError
from unmask.files import write_json
from unmask.model.backbones.transformer import Architecture
from unmask.model.model import Model
from unmask.untrusted import read_object

CODE = "modeling_unmask.py"
CLASSES = {"AutoConfig": "UnmaskConfig", "AutoModelForMaskedLM": "UnmaskForMaskedLM"}


def check_exported(model: Model) -> None:
    """Refuse a model whose network the file does not have."""
    facts = model.objective.facts
    if not isinstance(model.spec, Architecture):
        raise UserError(f"--transformers has the backbone 'transformer' only; this model has {model.spec.name!r}.")
    if not (facts.causal or facts.masked_lm):
        raise UserError(
            f"--transformers has networks that read whole rows; one of the objective {model.objective.name!r} is "
            "read otherwise."
        )


def write_code(folder: Path) -> None:
    """Add the file, and say in config.json that it is there."""
    shutil.copyfile(Path(__file__).with_name(CODE), folder / CODE)
    config = read_object(folder / "config.json")
    classes = {auto: f"{CODE.removesuffix('.py')}.{name}" for auto, name in CLASSES.items()}
    write_json(folder / "config.json", {**config, "auto_map": classes})
