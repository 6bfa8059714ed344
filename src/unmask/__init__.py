"""unmask: masked diffusion language models, with every number proven.

The public names, imported on first use so that `import unmask` stays light:

    unmask.load(path)   a checkpoint, ours or a published one, from a folder or the hub, as a Model
    unmask.Model        a network with its tokenizer: .log_probs(x_t), .tokenizer, .settings, .num_parameters
    unmask.sample(model, n=, length=, prompt=, sampler=, seed=)   texts, each with the trace of how it came
    unmask.infill(model, "The ___ sat on the [5].", n=)           blanks filled, best first
    unmask.fill(network, canvas, policy, seed=)                   the generator underneath: yields after every call
    unmask.evaluate(model, data, passes=)                         the likelihood of a corpus, with its error bars
    unmask.score(model, texts, passes=)                           that of each text
    unmask.log_likelihood(model, texts, given=, passes=)          the same as a tensor with gradients
    unmask.train(data, out, steps=, model={"width": 128})         a training run: yields after every update
    unmask.classify(model, data, out, epochs=, seeds=)            fine-tuning for classification: returns the scores
    unmask.Predictor.load(out).predict(texts)                     the labels of texts, by what it wrote
    unmask.Control(pattern=, one_of=, form=, guidance=, ...)      requirements on the text: `control=` of both
    unmask.Policy       the base class of samplers: `sampler=` takes a name or an instance
    unmask.UserError    the error for every mistake of a user: what is wrong, what was seen, what to do
"""

from importlib import import_module
from typing import Any

from unmask.openmp import wait_without_spinning

__version__ = "0.1.0"

wait_without_spinning()  # before anything imports torch

_HOMES = {
    "Control": "unmask.sampling.control",
    "Model": "unmask.model.model",
    "load": "unmask.model.checkpoint",
    "UserError": "unmask.errors",
    "Policy": "unmask.sampling.policy",
    "Predictor": "unmask.model.predictor",
    "evaluate": "unmask.evaluation.texts",
    "score": "unmask.evaluation.texts",
    "classify": "unmask.training.classify",
    "fill": "unmask.sampling.masked",
    "log_likelihood": "unmask.evaluation.differentiable",
    "infill": "unmask.sampling.tasks.infill",
    "sample": "unmask.sampling.tasks.continuation",
    "train": "unmask.training.run",
}

__all__ = [
    *("Control", "Model", "Policy", "Predictor", "UserError", "__version__"),
    *("classify", "evaluate", "fill", "infill", "load", "log_likelihood", "sample", "score", "train"),
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'unmask' has no attribute {name!r}; it has: {', '.join(__all__)}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
