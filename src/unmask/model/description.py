"""What a checkpoint is, from its config.json and the headers of its weights: no weight is read."""

from dataclasses import dataclass
from pathlib import Path

from unmask.model.checkpoint import check_against, find, on_meta, read_layout, read_tokenizer, stated_for
from unmask.model.format import Found
from unmask.model.sizes import bounded_by, check_sizes
from unmask.model.weights import files_of
from unmask.text.tokens.tokenizer import Tokenizer


@dataclass(frozen=True)
class Description:
    """A checkpoint whose files belong together, as far as that can be told without reading weights."""

    folder: Path
    layout: str  # the name of its format
    found: Found  # network, mask, objective, settings
    tokenizer: Tokenizer | None
    parameters: int  # what the objective learns included
    bytes: int  # of the files of weights
    types: tuple[str, ...]  # of the weights in them
    proven: bool  # has a self-test

    @property
    def mask(self) -> int:
        if self.found.mask is not None:
            return self.found.mask
        return self.found.spec.vocab - 1 if self.tokenizer is None else self.tokenizer.mask


def describe(path: str | Path, *, dialect: str = "") -> Description:
    """The description of a checkpoint in a folder or on the hub; `dialect` as in `load`."""
    folder, downloaded = find(path)
    files, layout, found = read_layout(folder, dialect or stated_for(path))
    check_sizes(found.spec)
    with bounded_by(files.tensors, found.spec):
        denoiser = on_meta(found.spec, found.objective)
    check_against(files, layout, found, denoiser)
    return Description(
        folder,
        layout.name,
        found,
        read_tokenizer(folder, files.note, found.spec, found.mask, hub=downloaded, usual=found.tokenizer),
        sum(parameter.numel() for parameter in denoiser.parameters()),
        sum(file.stat().st_size for file in files_of(folder)),
        tuple(sorted({kind for _, kind in files.tensors.values()})),
        bool(files.note),
    )
