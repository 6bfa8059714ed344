"""The settings of a training run: frozen, checked on construction, saved with every checkpoint."""

from dataclasses import dataclass, field
from typing import Literal

from unmask.errors import UserError


def at_least(low: float, **values: float) -> None:
    for name, value in values.items():
        if not value >= low:
            raise UserError(f"{name} must be at least {low}, not {value}.")


def share(**values: float) -> None:
    for name, value in values.items():
        if not 0 <= value <= 1:
            raise UserError(f"{name} is a share, from 0 to 1, not {value}.")


@dataclass(frozen=True)
class Text:
    """How text becomes rows of tokens."""

    tokenizer: str = "auto"  # byte, character, bpe, dna, text8, or a path; auto: that of --init, or a new bpe
    vocab: int = 4096  # size of a bpe vocabulary that is trained on the data
    length: int = 128  # tokens of a row
    pack: Literal["stream", "wrap", "rows"] = "stream"  # wrap: each row between bos and eos; rows: a document each
    documents: str = "auto"  # in .txt files: file, line, paragraph, separator
    separator: str = "<|endoftext|>"  # what stands between documents of a .txt file
    field: str = "text"  # field of .jsonl, column of .csv and .parquet
    valid: float = 0.01  # share of the documents held out, where file names do not say which

    def __post_init__(self) -> None:
        at_least(3, length=self.length)
        share(valid=self.valid)


@dataclass(frozen=True)
class Shape:
    """The network; with --init it is the checkpoint's, but for dropout."""

    width: int = 256  # features of a position
    blocks: int = 6
    heads: int = 4
    cond: int = 0  # features of the noise level that modulate each block; 0: no modulation; the paper: 128
    dropout: float = 0.0  # on both branches of a block
    tied: bool = False  # the head reuses the embedding
    time_conditioning: bool = False  # tell the network the noise level; needs cond
    reads_before: bool = False  # predict position i from the hidden state of i − 1; always so for ar


@dataclass(frozen=True)
class Objective:
    """What is minimised. What is reported is always the bound (for ar: the likelihood itself)."""

    name: Literal["mdlm", "d3pm", "sedd", "ar"] = "mdlm"
    schedule: str = "log-linear"  # log-linear, cosine, cosine-squared, linear, geometric, polynomial
    steps: int = 1000  # T of d3pm
    times: Literal["count", "stratified", "bell"] = "count"  # stratified k; stratified t; t with a bell density
    low: float = 0.0  # smallest t; the reference looks at none below 1e-3
    bell_mean: float = 0.0  # of logit t, for times = bell
    bell_spread: float = 1.0  # standard deviation of logit t
    bell_floor: float = 0.2  # share of uniform t in the mixture, which bounds the weights
    weight: Literal["bound", "flat"] = "bound"  # flat: plain cross-entropy on masks (mdlm)

    def __post_init__(self) -> None:
        at_least(1, steps=self.steps)
        share(low=self.low, bell_floor=self.bell_floor)
        if self.bell_spread <= 0:
            raise UserError(f"bell_spread must be above 0, not {self.bell_spread}.")
        if self.name != "mdlm" and self.weight == "flat":
            raise UserError(f"weight = flat is masked cross-entropy, which {self.name} does not have: use mdlm.")


@dataclass(frozen=True)
class Optim:
    """The optimizer, its learning rate, and the moving average of the weights."""

    name: Literal["adamw", "muon"] = "adamw"  # muon: orthogonal updates of the matrices in the blocks
    batch: int = 32  # rows in a step, over all processes
    micro: int = 0  # rows in a forward pass; 0: as many as a process has in a step
    lr: float = 1e-3  # peak learning rate
    schedule: Literal["constant", "cosine", "linear"] = "cosine"  # after the warm-up
    warmup: int = 100  # steps of linear growth
    floor: float = 0.1  # share of lr at the last step, for cosine and linear
    reference: bool = False  # the first update has learning rate 0, as in the reference
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.0  # on matrices only
    clip: float = 1.0  # largest norm of the gradient; 0: no limit
    ema: float = 0.999  # decay of the averaged weights, which are those evaluated and exported; 0: none

    def __post_init__(self) -> None:
        at_least(1, batch=self.batch)
        at_least(0, micro=self.micro, lr=self.lr, warmup=self.warmup, weight_decay=self.weight_decay, clip=self.clip)
        share(floor=self.floor, beta1=self.beta1, beta2=self.beta2, ema=self.ema)


@dataclass(frozen=True)
class Warm:
    """`recipe = warm`: first autoregressive, then masked diffusion with the same trunk."""

    share: float = 0.5  # of the steps that are autoregressive
    anneal: int = 0  # steps over which the network comes to look ahead; 0: at once; with --init too

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise UserError(f"warm.share must lie between 0 and 1, not {self.share}.")
        at_least(0, anneal=self.anneal)


@dataclass(frozen=True)
class Run:
    """What happens around the steps."""

    log_every: int = 10  # steps between lines
    eval_every: int = 500  # steps between validations, each with a preview
    eval_rows: int = 256  # rows of the validation split that are looked at
    save_every: int = 500  # steps between checkpoints
    keep: int = 2  # last checkpoints kept, besides the best
    preview: int = 1  # samples shown at each validation
    checkpointing: bool = False  # forget activations, compute them again in the backward pass
    compile: bool = False  # torch.compile
    tensorboard: bool = False  # write event files too
    parallel: Literal["ddp", "fsdp"] = "ddp"  # under torchrun; fsdp: a process keeps a part of the network only
    patience: float = 60  # seconds that the processes of a step wait for each other

    def __post_init__(self) -> None:
        at_least(1, log_every=self.log_every, eval_every=self.eval_every, save_every=self.save_every, keep=self.keep)
        at_least(0, eval_rows=self.eval_rows, preview=self.preview)
        at_least(1, patience=self.patience)


@dataclass(frozen=True)
class Train:
    """A whole run."""

    data: str = ""  # text: a file, a folder, a glob, - or hf:NAME; or a folder that `unmask prepare` made
    out: str = ""  # the run's folder
    steps: int = 2000  # updates of the weights
    seed: int = 1  # of the weights, the order of the data and the noise
    init: str = ""  # a checkpoint or run to begin from
    recipe: Literal["plain", "warm"] = "plain"  # warm: autoregressive first, then the objective
    text: Text = field(default_factory=Text)
    model: Shape = field(default_factory=Shape)
    objective: Objective = field(default_factory=Objective)
    optim: Optim = field(default_factory=Optim)
    warm: Warm = field(default_factory=Warm)
    run: Run = field(default_factory=Run)

    def __post_init__(self) -> None:
        at_least(1, steps=self.steps)
        told = self.model.time_conditioning
        if self.objective.name == "sedd" and not told:
            raise UserError("sedd needs the noise level: set model.cond (128 is usual) and model.time_conditioning.")
        if self.objective.name == "mdlm" and self.objective.times == "count" and told:
            raise UserError(
                "objective.times = count has no noise level to tell the network: "
                "use times = stratified, or switch model.time_conditioning off."
            )
        if self.recipe == "warm" and (self.objective.name != "mdlm" or self.model.cond):
            raise UserError("recipe = warm leads to mdlm with a network without modulation: set model.cond = 0.")
        if self.recipe == "warm" and self.init:
            raise UserError("recipe = warm begins from nothing; with --init the first phase is already done.")
