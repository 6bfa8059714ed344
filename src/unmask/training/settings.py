"""The settings of a training run: frozen, checked on construction, saved with every checkpoint."""

from dataclasses import dataclass, field, replace
from typing import Literal

from unmask.diffusion.objective import OBJECTIVES, Objective
from unmask.errors import UserError, unknown
from unmask.model.adapter import Adapter
from unmask.model.backbone import BACKBONES, Spec
from unmask.model.passes.doubled import check_blockwise
from unmask.processes.device import Device, Dtype
from unmask.processes.threads import Threads, check_threads
from unmask.settings import Shortly, at_least, check_shares
from unmask.text.corpus.documents import FileLayout
from unmask.text.layout import LAYOUTS
from unmask.training.optim import OPTIMIZERS, Optim


@dataclass(frozen=True)
class Text:
    """How text becomes rows of tokens. The short names of the flags are those of `unmask prepare` and `evaluate`."""

    tokenizer: Shortly[str] = "auto"  # byte, bpe, dna, ..., or a path; auto: of --init, else bpe
    vocab: Shortly[int] = 0  # size of a bpe vocabulary trained on the data; 0: 512 to 4096, by its amount
    length: Shortly[int] = 128  # tokens per row
    pack: Shortly[str] = "auto"  # how rows are cut (--pack help lists the ways); auto: by the data
    lengths: Literal["whole", "random"] = "whole"  # random: a tenth of the rows is cut to a random length
    documents: Shortly[str] = "auto"  # unit of a document in .txt files: file, line, paragraph, separator
    separator: Shortly[str] = "<|endoftext|>"  # text between the documents of a .txt file
    field: Shortly[str] = "text"  # field of .jsonl, column of .csv and .parquet, that holds the text
    given: Shortly[str] = ""  # pairs: field of the prompt, which is read and not learned
    answer: Shortly[str] = ""  # field of the answer, or of a list of chat messages; else --field
    template: Shortly[str] = ""  # chats: roles, chatml or a jinja file; none: of --init, or pairs
    intervals: Shortly[str] = ""  # BED file: regions of a FASTA file, with their splits
    reverse_complement: Shortly[bool] = False  # DNA: read training rows from a random strand
    valid: Shortly[float] = 0.01  # share of the documents held out, if no file name marks a validation split

    def __post_init__(self) -> None:
        at_least(3, length=self.length)
        at_least(0, vocab=self.vocab)
        check_shares(valid=self.valid)
        if self.pack != "auto" and self.pack.partition(":")[0] not in LAYOUTS:
            raise unknown("packing", self.pack, ["auto", *LAYOUTS])

    @property
    def layout(self) -> FileLayout:
        """How documents are laid out in the files of the data."""
        pairs = self.given, self.answer, self.template
        return FileLayout(self.documents, self.separator, self.field, *pairs, self.intervals)

    @property
    def chooses_pack(self) -> bool:
        """Whether the data decide how rows are cut."""
        return self.pack == "auto"


@dataclass(frozen=True)
class Warm:
    """`recipe = warm`: first autoregressive, then masked diffusion with the same trunk."""

    share: float = 0.25  # share of the steps that are autoregressive
    anneal: int = 0  # steps from causal attention to both sides, also with --init; 0: at once

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise UserError(f"warm.share must lie between 0 and 1, not {self.share}.")
        at_least(0, anneal=self.anneal)


@dataclass(frozen=True)
class Run:
    """Logging, validation and checkpoints."""

    log_every: int = 10  # steps between log lines
    eval_every: int = 500  # steps between validations, each with a preview
    eval_rows: int = 256  # rows of the validation split that are evaluated
    save_every: int = 500  # steps between checkpoints
    keep: int = 2  # last checkpoints kept, besides the best
    preview: int = 1  # samples shown at each preview
    preview_minutes: float = 1.0  # minutes between previews, besides those at validations; 0: only those
    checkpointing: bool = False  # activation checkpointing: less memory, recompute in the backward pass
    compile: bool = False  # torch.compile
    oversize: bool = False  # begin even if the run seems to need more memory than there is
    track: Literal["", "tensorboard", "wandb", "mlflow"] = ""  # also write the curves for this program
    tensorboard: bool = field(default=False, metadata={"hidden": True})  # in settings of older runs: track it
    device: Shortly[Device] = "auto"  # auto: a GPU if there is one
    dtype: Shortly[Dtype] = "auto"  # of products; auto: bfloat16 on CUDA; --minutes tries it
    minutes: float = field(default=0.0, metadata={"hidden": True})  # set by --minutes: a late run gets fewer steps
    threads: Shortly[Threads] = "auto"  # on the CPU; auto: a short trial at the start chooses
    parallel: Literal["ddp", "fsdp"] = "ddp"  # under torchrun; fsdp: each process holds one part of the weights
    patience: float = 60.0  # seconds that processes wait for each other in a step

    def __post_init__(self) -> None:
        at_least(1, log_every=self.log_every, eval_every=self.eval_every, save_every=self.save_every, keep=self.keep)
        at_least(0, eval_rows=self.eval_rows, preview=self.preview, preview_minutes=self.preview_minutes)
        at_least(0, minutes=self.minutes)
        at_least(1, patience=self.patience)
        check_threads(self.threads)
        if self.dtype == "float16":
            raise UserError("gradients underflow in float16: train with --dtype bfloat16 or float32.")


@dataclass(frozen=True)
class Train:
    """A whole run."""

    data: str = ""  # a file, folder, glob, -, corpus (lm1b), hf:NAME, prepared data; mixed: A:3 B:1
    out: str = ""  # the run's folder
    steps: int = 2000  # updates of the weights
    seed: int = 1  # seed of the weights, the order of the data and the noise
    init: str = ""  # checkpoint or run whose weights to start from
    dialect: str = ""  # family of --init, if its files do not say it; none: the autoregressive one
    recipe: Literal["auto", "plain", "warm"] = "auto"  # warm: autoregressive first; auto: warm where possible
    text: Text = field(default_factory=Text)
    model: Spec = field(default_factory=lambda: BACKBONES.usual("transformer"))
    objective: Objective = field(default_factory=lambda: OBJECTIVES.usual("mdlm"))
    optim: Optim = field(default_factory=lambda: OPTIMIZERS.usual("auto"))
    warm: Warm = field(default_factory=Warm)
    adapter: Adapter = field(default_factory=Adapter)
    run: Run = field(default_factory=Run)

    def __post_init__(self) -> None:
        at_least(1, steps=self.steps)
        self.objective.remark(self.text.length)
        if self.objective.facts.remembers:
            check_blockwise(self.model)
        if self.recipe == "warm" and not self.can_warm:
            raise UserError(
                f"recipe = warm trains an autoregressive model first, then one that sees both sides. The objective "
                f"{self.objective.name} with this {self.model.name} does not allow it. It needs mdlm and a network "
                "without modulation (model.cond = 0)."
            )
        if self.recipe == "warm" and self.init:
            raise UserError("recipe = warm trains from scratch; with --init the first phase is already done.")

        if self.dialect and not self.init:
            raise UserError(f"--dialect {self.dialect} is the family of --init: give --init too.")
        if self.adapter.rank and not self.init:
            raise UserError("an adapter is trained over the weights of a model: give its base with --init.")
        if self.adapter.rank and (self.run.parallel == "fsdp" or self.run.compile):
            raise UserError("adapters are trained without --run.compile, and with --run.parallel ddp.")

    @property
    def can_warm(self) -> bool:
        return self.objective.facts.warm_start and self.model.warms


def settle_training(asked: Train) -> Train:
    """The settings with every `auto` replaced by the best measured choice for the objective, network and --init."""
    facts, model = asked.objective.facts, asked.model
    wanted = facts.network_wants_sigma and model.offers_sigma and not asked.init
    asked = replace(asked, model=model.shown(wanted or model.shown_sigma))
    recipe = asked.recipe
    if recipe == "auto":
        recipe = "warm" if asked.can_warm and not asked.init and asked.steps > 1 else "plain"
    return replace(asked, recipe=recipe, optim=asked.optim.settled(facts.optimizer, tuned=bool(asked.init)))
