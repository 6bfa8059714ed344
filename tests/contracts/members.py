"""Every member of every registry, toys included, with models that cost nothing."""

from dataclasses import replace

import torch

import toys.attention
import toys.backbone
import toys.kernel
import toys.objective
import toys.recurrent
import toys.sampler  # noqa: F401
from unmask.diffusion.kernel import KERNELS
from unmask.diffusion.objective import OBJECTIVES, Objective
from unmask.diffusion.schedule import Cosine
from unmask.model.backbone import BACKBONES, Backbone, Spec, build
from unmask.model.checkpoint import load, save
from unmask.model.model import Model
from unmask.sampling.policy import POLICIES
from unmask.text.tokens.vocabulary import character

LETTERS = character(["abcdefgh .,\n"])
LENGTH = 12
SMALL = {"width": 16, "blocks": 2, "heads": 2}
NAMES = {
    "objectives": sorted(OBJECTIVES),
    "kernels": sorted(KERNELS),
    "backbones": sorted(BACKBONES),
    "policies": sorted(POLICIES),
}


def unusual(name: str) -> Objective:
    """An objective with another schedule and another T than its own, where it has them."""
    objective = OBJECTIVES.entry(name).make()
    changes = {"schedule": Cosine(eps=0.05)} if objective.schedule else {}
    return replace(objective, **changes, **({"steps": 7} if objective.steps else {}))


def spec_of(backbone: str, *, causal: bool = False, sigma: bool = False, vocab: int = LETTERS.size) -> Spec:
    kind = BACKBONES[backbone]
    known = {name: value for name, value in SMALL.items() if name in kind.__dataclass_fields__}
    spec = kind(**known).sized(vocab=vocab, length=LENGTH, causal=causal)
    return spec.shown(True) if sigma else spec


def network_of(spec: Spec, *, seed: int = 1, scale: float = 0.6) -> Backbone:
    """A network whose weights are random and not small."""
    generator = torch.Generator().manual_seed(seed)
    network = build(spec)
    for parameter in network.parameters():
        with torch.no_grad():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(noise * (scale if parameter.ndim > 1 else 0.1))
    return network.eval()


def model_of(folder, objective: Objective | str, backbone: str = "transformer", **settings) -> Model:
    """A checkpoint of an objective on a backbone, written and read again."""
    objective = OBJECTIVES.entry(objective).make() if isinstance(objective, str) else objective
    facts = objective.facts
    spec = spec_of(backbone, causal=facts.causal, sigma=facts.network_wants_sigma)
    network = network_of(spec)
    with torch.random.fork_rng():  # what an objective learns itself is drawn when it is written
        torch.manual_seed(1)
        return load(
            save(
                folder, network, mask=LETTERS.mask, objective=objective, tokenizer=LETTERS, settings=settings or None
            )
        )
