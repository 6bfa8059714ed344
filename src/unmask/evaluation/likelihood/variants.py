"""Variants: how much a substitution changes log p of a sequence, by pseudo-likelihood, by the bound, or exactly.

    score = log p(sequence with the alternative) − log p(sequence as it is), in nats; below 0: less probable

The network sees a window around the position. `pseudo` hides the position and compares the two letters there: one
forward pass. `bound` hides tokens at random, the same ones for both sequences, so most of the Monte Carlo error
cancels. An autoregressive network gives both likelihoods exactly. Of DNA both strands are scored and averaged.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.diffusion.clean import CleanRows
from unmask.diffusion.rows import forbid
from unmask.diffusion.times import stratified_times
from unmask.errors import UserError, unknown
from unmask.evaluation.likelihood import estimators
from unmask.model.denoiser import NetworkView
from unmask.model.model import Model
from unmask.model.passes.whole import logits_at
from unmask.random import Noise
from unmask.text.corpus.decompress import lines
from unmask.text.corpus.records import rows_of
from unmask.text.row import Row
from unmask.text.tokens.alphabets import check_alphabet, unscored_ids
from unmask.text.tokens.bases import complement

BY = ("auto", "pseudo", "bound")
BY_LETTER = "variants need a vocabulary with one token per letter (dna, caduceus, protein, character)."
POSITION = re.compile("[0-9]{1,18}")
INLINE = re.compile(r"(?:(\S+):)?([A-Za-z*-])([0-9]{1,12})([A-Za-z*-])")  # chr1:A123G, A123G


class Variant(NamedTuple):
    name: str  # of the sequence
    position: int  # counted from 1
    ref: str
    alt: str
    where: str  # for error messages


@dataclass(frozen=True)
class Effect:
    """The score of a variant."""

    name: str
    position: int
    ref: str
    alt: str
    score: float  # mean over strands
    error: float  # Monte Carlo standard error; 0: none
    forward: float
    reverse: float | None  # of the other strand of DNA; None: not scored


@dataclass(frozen=True)
class Listed:
    """The variants of a file or a command line, and the lines of the file that are none."""

    variants: list[Variant]
    skipped: Mapping[str, int]  # lines by what they are

    @property
    def line(self) -> str:
        """What was skipped, in words; empty: nothing."""
        if not self.skipped:
            return ""
        count = sum(self.skipped.values())
        kinds = ", ".join(f"{number:,} {kind}" for kind, number in sorted(self.skipped.items()))
        lines = "1 line was" if count == 1 else f"{count:,} lines were"
        return f"{lines} skipped ({kinds}): only substitutions of one letter by another are scored"


def read_variants(what: str, names: Sequence[str]) -> Listed:
    """Variants from a .vcf, .tsv or .csv file (columns CHROM, POS, REF, ALT), or written as name:A123G,name:C7T.

    Lines of a file that are no substitutions of one letter are skipped and counted.
    """
    path = Path(what)
    if path.is_file():
        return _read_substitutions(path)
    variants = []
    for part in filter(None, re.split(r"[,\s]+", what)):
        match = INLINE.fullmatch(part)
        if match is None:
            raise UserError(
                f"{part!r:.60} is neither a file nor a variant: write it as chr1:A123G, with the name, the letter "
                "that is there, its position from 1, and the new letter."
            )
        if match[1] is None and len(names) != 1:
            raise UserError(f"{part!r}: which of the {len(names)} sequences? Write NAME:{part}.")
        variants.append(Variant(match[1] or names[0], int(match[3]), match[2], match[4], part))
    if not variants:
        raise UserError(f"{what!r} holds no variant.")
    return Listed(variants, {})


def _read_substitutions(path: Path) -> Listed:
    """The substitutions of a file, and a count of its other lines."""
    cases, skipped = [], Counter[str]()
    for variant in _table(path):
        if (kind := _other_kind(variant.ref, variant.alt)) is None:
            cases.append(variant)
        else:
            skipped[kind] += 1
    listed = Listed(cases, skipped)
    if not cases:
        raise UserError(f"{path} holds no variant" + (f": {listed.line}." if skipped else "."))
    return listed


def _other_kind(ref: str, alt: str) -> str | None:
    """What a line of a table is that does not replace one letter by another; None: it does."""
    if "," in alt:
        return "with several alternatives"
    if len(ref) == len(alt) == 1 and alt != ".":
        return "with the same letter twice" if ref.upper() == alt.upper() else None
    return "without an alternative" if alt in ("", ".") else "insertions, deletions or longer"


def _cells(path: Path) -> Iterator[tuple[list[str], str]]:
    """The cells of each line, and where it is; a .vcf file is separated by tabs and has no quotes."""
    if path.name.lower().endswith((".vcf", ".vcf.gz")):
        for number, (line, _) in enumerate(lines(path), 1):
            yield line.split("\t"), f"line {number} of {path}"
    else:
        yield from ((cells, where) for cells, where, _ in rows_of(path))


def _table(path: Path) -> Iterator[Variant]:
    columns: dict[str, int] = {}
    wanted = {"chrom": ("#chrom", "chrom", "name", "sequence"), "pos": ("pos", "position"), "ref": ("ref",)}
    wanted["alt"] = ("alt",)
    for cells, where in _cells(path):
        if not cells or cells[0].startswith("##"):
            continue
        if not columns:
            head = [cell.strip().lower() for cell in cells]
            for key, spelled in wanted.items():
                place = next((head.index(one) for one in spelled if one in head), None)
                if place is None:
                    raise UserError(
                        f"{where}: a table of variants needs the columns CHROM, POS, REF and ALT; saw {cells}."
                    )
                columns[key] = place
            continue
        if len(cells) <= max(columns.values()) or not POSITION.fullmatch(cells[columns["pos"]].strip()):
            raise UserError(f"{where} is not a variant: {cells!r:.80}.")
        name, ref, alt = (cells[columns[key]].strip() for key in ("chrom", "ref", "alt"))
        yield Variant(name, int(cells[columns["pos"]]), ref, alt, where)


class Case(NamedTuple):
    """A variant as the network sees it: a window, the place in it, and the two ids."""

    tokens: np.ndarray
    at: int
    ref: int
    alt: int


def effects(
    model: Model,
    sequences: Mapping[str, str],
    variants: Sequence[Variant],
    *,
    by: str = "auto",
    length: int = 0,
    both: bool = True,
    passes: int = 64,
    seed: int = 0,
    batch_tokens: int = 8192,
) -> Iterator[Effect]:
    if by not in BY:
        raise unknown("way to score variants", by, BY)
    facts, tokenizer = model.objective.facts, model.text_tokenizer()
    hides = facts.masked_lm
    if by == "pseudo" and not hides:
        raise UserError(
            f"pseudo-likelihoods need a model that sees both sides, and this one is {model.objective.name}."
        )
    if passes < 2:
        raise UserError(f"a standard error needs at least 2 passes; saw {passes}.")
    if not tokenizer.reads_letters:
        raise UserError(BY_LETTER)
    partners = complement(tokenizer) if both else None
    encoded: dict[str, np.ndarray] = {}
    cases: list[Case] = []
    for variant in variants:
        if variant.name not in sequences:
            raise UserError(f"{variant.where}: {unknown('sequence', variant.name, sequences)}")
        text = sequences[variant.name]
        if variant.name not in encoded:
            check_alphabet(tokenizer, text)
            encoded[variant.name] = tokenizer.encode_batch([text])[0].astype(np.int64)
        cases.append(_case(variant, text, encoded[variant.name], model, length or model.spec.length))
    score = _pseudo if by == "pseudo" or (by == "auto" and hides) else _likelihoods
    options = {"passes": passes, "seed": seed, "budget": batch_tokens}
    one = score(model, cases, **options)
    other = (
        None if partners is None else score(model, [_on_other_strand(case, partners) for case in cases], **options)
    )
    for number, variant in enumerate(variants):
        forward, error = one[number]
        back, back_error = (None, 0.0) if other is None else other[number]
        mean = forward if back is None else (forward + back) / 2
        spread = error if back is None else float(np.hypot(error, back_error) / 2)
        yield Effect(variant.name, variant.position, variant.ref, variant.alt, mean, spread, forward, back)


def _case(variant: Variant, text: str, ids: np.ndarray, model: Model, length: int) -> Case:
    """The window of a variant; refuses one that does not fit the sequence."""
    tokenizer, at = model.text_tokenizer(), variant.position - 1
    if len(ids) != len(text):
        raise UserError(BY_LETTER)
    if len(variant.ref) != 1 or len(variant.alt) != 1 or variant.ref.upper() == variant.alt.upper():
        raise UserError(
            f"{variant.where}: {variant.ref} to {variant.alt} is not a substitution of one letter by another; "
            "insertions and deletions are not scored."
        )
    if not 0 <= at < len(ids):
        raise UserError(f"{variant.where}: position {variant.position} is outside {variant.name} (1 to {len(ids)}).")
    if text[at].upper() != variant.ref.upper():
        raise UserError(
            f"{variant.where}: {variant.name} has {text[at]!r} at position {variant.position}, not {variant.ref!r}. "
            "Is the position counted from 1, and the sequence the right one?"
        )
    ref, alt = (int(tokenizer.encode_batch([letter])[0][0]) for letter in (variant.ref, variant.alt))
    if {ref, alt} & set(unscored_ids(tokenizer)):
        raise UserError(f"{variant.where}: {variant.ref} to {variant.alt} has a letter that stands for no base.")
    room = length - len(model.layout.part([]).tokens)
    start = min(max(0, at - room // 2), max(0, len(ids) - room))
    return Case(ids[start : start + room], at - start, ref, alt)


def _on_other_strand(case: Case, partners: np.ndarray) -> Case:
    tokens = partners[case.tokens][::-1]
    return Case(tokens, len(tokens) - 1 - case.at, int(partners[case.ref]), int(partners[case.alt]))


def _row(model: Model, case: Case) -> tuple[Case, Row]:
    """A case between the marks of the model's rows, and the row."""
    row = model.layout.part(case.tokens)
    return case._replace(tokens=row.tokens, at=case.at + int(len(row.tokens) > len(case.tokens))), row


@torch.inference_mode()
def _pseudo(model: Model, cases: Sequence[Case], *, passes: int, seed: int, budget: int) -> list[tuple[float, float]]:
    """log p(alt | the rest) − log p(ref | the rest), for cases of one length at a time."""
    effects: list[tuple[float, float]] = [(0.0, 0.0)] * len(cases)
    shown = [_row(model, case)[0] for case in cases]
    lengths = np.array([len(case.tokens) for case in shown])
    for length in np.unique(lengths).tolist():
        mine = np.flatnonzero(lengths == length)
        for some in np.array_split(mine, -(-len(mine) * length // budget)):
            tokens = torch.from_numpy(np.stack([shown[i].tokens for i in some]))
            log_p = _hidden_logits(model, tokens, torch.tensor([shown[i].at for i in some])).log_softmax(-1).double()
            for row, i in enumerate(some.tolist()):
                effects[i] = (float(log_p[row, shown[i].alt] - log_p[row, shown[i].ref]), 0.0)
    return effects


def _hidden_logits(model: Model, tokens: Int[Tensor, "n l"], at: Int[Tensor, " n"]) -> Float[Tensor, "n v"]:
    """The logits at one position of each row, which is hidden; never the mask's."""
    each, length = torch.arange(len(tokens)), tokens.shape[1]
    tokens[each, at] = model.mask
    sigma = estimators.level(torch.full((len(tokens),), 1 / max(length, 2)))
    where = (tokens, sigma, each * length + at)
    return forbid(logits_at(model.network, *(one.to(model.device) for one in where)), model.mask).cpu()


@torch.inference_mode()
def _likelihoods(
    model: Model, cases: Sequence[Case], *, passes: int, seed: int, budget: int
) -> list[tuple[float, float]]:
    """The difference of two bounds with common random numbers, or of two exact likelihoods."""
    how = estimators.estimator(
        model.objective.bounded().estimator, objective=model.objective, parts=model.parts, state=model.state
    )
    effects = []
    for case, row in (_row(model, case) for case in cases):
        count = passes if how.chance else 1
        source = torch.Generator().manual_seed(seed)
        t = stratified_times(torch.rand(count, generator=source, dtype=torch.float64))
        u = torch.rand(count, len(case.tokens), generator=source, dtype=torch.float64)
        ref = torch.from_numpy(case.tokens.copy())
        alt = ref.clone()
        alt[case.at] = case.alt
        frozen = torch.from_numpy(row.frozen)
        gained = _nats(model, how, ref, t, u, frozen, budget) - _nats(model, how, alt, t, u, frozen, budget)
        spread = float(gained.std() / count**0.5) if count > 1 else 0.0
        effects.append((float(gained.mean()), spread))
    return effects


def _nats(
    model: Model, how: estimators.Estimator, row: Tensor, t: Tensor, u: Tensor, frozen: Tensor, budget: int
) -> Tensor:
    """−log p of a row, or its bound, once for every draw."""
    size, sums = max(1, budget // len(row)), []
    for first in range(0, len(t), size):
        some = slice(first, first + size)
        shape = (len(t[some]), len(row))
        noise, frozen_rows = Noise(t[some], u[some]), frozen.expand(shape)
        clean = CleanRows(row.expand(shape), noise, mask=model.mask, frozen=frozen_rows).to(model.device)
        sums.append(how.nats(NetworkView(model.network), clean).double().sum(1).cpu())
    return torch.cat(sums)


def check_sees_both_sides(model: Model) -> None:
    """Refuse a model that cannot predict a letter from the letters on both sides, as a logo needs."""
    if not model.objective.facts.masked_lm:
        raise UserError(f"a logo needs a model that sees both sides, and this one is {model.objective.name}.")


@torch.inference_mode()
def position_probs(model: Model, text: str, *, budget: int = 8192) -> np.ndarray:
    """p(letter | the rest) at every position of a short text (l v): each position is hidden in turn."""
    check_sees_both_sides(model)
    tokenizer = model.text_tokenizer()
    ids = tokenizer.encode_batch([text])[0].astype(np.int64)
    shown = model.layout.part(ids).tokens
    before, length, probs = int(len(shown) > len(ids)), len(shown), []
    for some in np.array_split(np.arange(len(ids)), -(-len(ids) * length // budget)):
        tokens = torch.from_numpy(shown).repeat(len(some), 1)
        logits = _hidden_logits(model, tokens, torch.from_numpy(some) + before)
        probs.append(logits.softmax(-1).double().numpy())
    return np.concatenate(probs)
