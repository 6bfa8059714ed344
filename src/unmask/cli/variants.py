"""Score variants of a DNA or protein sequence: how much a substitution changes log p.

VARIANTS is a .vcf, .tsv or .csv file with the columns CHROM, POS, REF and ALT, or chr1:A123G,chr1:C200T. A score
below 0 says that the model finds the alternative less probable. Of DNA both strands are scored and averaged.

    unmask variants runs/dna genome.fa variants.vcf --out scores.tsv
    unmask variants runs/protein proteins.fa P53:R175H,P53:G245S --by bound --passes 256
    unmask variants runs/dna genome.fa chr20:A8000123G --logo site.png
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Annotated, Literal

import tyro

from unmask.cli.flags import ModelName, Place, Placing
from unmask.cli.table import write_text
from unmask.errors import UserError
from unmask.evaluation.likelihood.variants import (
    Variant,
    check_sees_both_sides,
    effects,
    position_probs,
    read_variants,
)
from unmask.text.corpus.documents import named_pieces
from unmask.text.corpus.formats import format_of
from unmask.text.corpus.manifest import loss_lines
from unmask.views.figure import check_picture, save_picture

COLUMNS = ("name", "position", "ref", "alt", "score", "error", "forward", "reverse")
AROUND = 15  # letters on either side of the first variant in a logo


@dataclass(frozen=True)
class Settings:
    model: ModelName
    sequences: Annotated[str, tyro.conf.Positional]  # the FASTA file that the variants belong to
    variants: Annotated[str, tyro.conf.Positional]  # the variants (see above)
    by: Literal["auto", "pseudo", "bound"] = "auto"  # pseudo: one pass; bound: of the window; auto: pseudo, or exact
    length: int = 0  # letters of the window around a variant; 0: the model's length
    strands: Literal["both", "forward"] = "both"  # strands of DNA that are scored; other sequences have one
    passes: int = 64  # bound: random draws of hidden tokens, shared by both letters
    seed: int = 0  # random seed
    batch_tokens: int = 8192  # tokens per forward pass
    out: Path | None = None  # write the table to a .tsv file instead of printing it
    logo: Path | None = None  # draw a sequence logo around the first variant, .png or .svg
    place: Placing = field(default_factory=Place)


def run(settings: Settings) -> None:
    path = Path(settings.sequences)
    if not path.is_file() or format_of(path.name)[0] != "fasta":
        raise UserError(f"{path} is not a FASTA file (.fa, .fasta, .fna, .faa).")
    if settings.logo is not None:
        check_picture(settings.logo)
    texts = texts_by_name(path)
    listed = read_variants(settings.variants, list(texts))
    if listed.line:
        print(f"{settings.variants}: {listed.line}", file=sys.stderr)
    variants = listed.variants
    model = settings.place.load(settings.model)
    if settings.logo is not None:
        check_sees_both_sides(model)
    for line in loss_lines({"replaced": model.text_tokenizer().replaced(texts_of(variants, texts))}):
        print(f"warning: {line}", file=sys.stderr)
    scored = effects(
        model,
        texts,
        variants,
        by=settings.by,
        length=settings.length,
        both=settings.strands == "both",
        passes=settings.passes,
        seed=settings.seed,
        batch_tokens=settings.batch_tokens,
    )
    lines = ["\t".join(COLUMNS)]
    for one in scored:
        values = asdict(one)
        lines.append("\t".join(format_field(values[column]) for column in COLUMNS))
    table = "\n".join(lines) + "\n"
    if settings.out is None:
        print(table, end="")
    else:
        write_text(settings.out, table)
        print(f"{len(lines) - 1} variants in {settings.out}", file=sys.stderr)
    if settings.logo is not None:
        from unmask.views.logo import logo_figure, logo_letters

        first = variants[0]
        start = max(0, first.position - 1 - AROUND)
        text = texts[first.name][start : first.position + AROUND]
        ids, letters = logo_letters(model.text_tokenizer())
        figure = logo_figure(position_probs(model, text)[:, ids], letters, start=start + 1, mark=first.position)
        save_picture(figure, settings.logo)
        print(settings.logo, file=sys.stderr)


def texts_of(variants: Sequence[Variant], texts: Mapping[str, str]) -> list[str]:
    return [texts[name] for name in dict.fromkeys(one.name for one in variants) if name in texts]


def texts_by_name(path: Path) -> dict[str, str]:
    """The sequences of a FASTA file."""
    texts: dict[str, str] = {}
    for name, pieces in groupby(named_pieces(path), key=lambda one: one[0]):
        if name.text in texts:
            raise UserError(
                f"two sequences of {path} are called {name.text!r}, so it is not clear which one a variant means: "
                "rename or remove one."
            )
        texts[name.text] = "".join(piece.text for _, piece in pieces)
    return texts


def format_field(value: object) -> str:
    return "" if value is None else f"{value:.5f}" if isinstance(value, float) else str(value)
