"""What a phase begins with: new weights, those of --init, or those of the phase before; each is read once."""

from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import nn

from unmask.diffusion.objective import CountsPart, Objective
from unmask.errors import UserError
from unmask.model import checkpoint, cost
from unmask.model.adapter_files import check_base, is_adapter
from unmask.model.backbone import build, skeleton
from unmask.model.denoiser import Denoiser
from unmask.model.format import read_note
from unmask.model.model import Model
from unmask.model.room import check_memory, check_room
from unmask.model.weights import weights_fingerprint
from unmask.processes.device import compute_type
from unmask.processes.team import Team
from unmask.sampling.fitting import process_for
from unmask.sampling.policy import POLICIES
from unmask.text.tokens.tokenizer import Tokenizer
from unmask.training.data import Data
from unmask.training.phases import Phase, continue_spec, spec_of
from unmask.training.settings import Train


def origin_of(asked: Train, folder: Path | None) -> Model | None:
    """The checkpoint that a phase starts from: that of the run, else --init; None: new weights."""
    if asked.adapter.rank:  # the weights stay those of the base
        source = asked.init
        if is_adapter(checkpoint.find(source)[0]):
            raise UserError(
                f"{source} is an adapter itself: make a base of it with `unmask convert {source} FOLDER`."
            )
        if folder:
            check_base(folder, read_note(folder), weights_fingerprint(checkpoint.find(source)[0]), source)
    else:
        source = str(folder) if folder else asked.init
    dialect = asked.dialect if source == asked.init else ""
    return checkpoint.load(source, trainable=True, dialect=dialect) if source else None


def denoiser_of(asked: Train, phase: Phase, data: Data, origin: Model | None, team: Team) -> Denoiser:
    """What a phase begins with: a network, and the parameters of its objective."""
    rows = min(asked.optim.micro or asked.optim.batch, asked.optim.batch // team.world)
    check_room(phase.objective, rows=rows, vocab=data.tokenizer.size, less="--optim.micro")
    parts: dict[str, Any] = {}
    if origin is None:
        spec = spec_of(asked, phase, vocab=data.tokenizer.size).reading(data.tokenizer)
    else:
        check_same_tokenizer(origin, data.tokenizer)
        spec, parts = continue_spec(origin.spec, asked, phase), inherited_parts(origin, phase.objective)
    if team.device.type == "cpu" and not asked.run.oversize and not asked.run.checkpointing:
        share, ema = phase.objective.facts.asked, asked.optim.ema > 0
        learned = asked.adapter.parameters(skeleton(spec)) if asked.adapter.rank else None
        check_memory(cost.training_bytes(spec, batch=rows, rows=share, ema=ema, learned=learned))
    torch.manual_seed(asked.seed)
    network = build(spec)
    if origin is not None:
        network.load_state_dict(origin.network.state_dict())
    network.compute = compute_type(asked.run.dtype, team.device)
    denoiser = Denoiser(network, phase.objective, **parts)
    if asked.adapter.rank:
        if len(denoiser.parts) or denoiser.state:
            raise UserError(
                f"the objective {phase.objective.name} has learned parts of its own: it takes no adapter."
            )
        denoiser.add_adapter(asked.adapter)
    for part in denoiser.parts.values():
        if isinstance(part, CountsPart):
            part.fill(data.counts())
    return denoiser


def inherited_sampling(origin: Model | None, objective: Objective) -> dict[str, Any]:
    """The default sampling settings of what a phase starts from, unless they are for another process or not known."""
    if origin is None:
        return {}
    facts = objective.facts
    name = str(origin.sampling.get("sampler", facts.sampler)).partition(":")[0]
    needs = POLICIES[name].needs if name in POLICIES else frozenset({name})
    process = process_for(needs, facts.gives)
    followed = process is not None and process is process_for(needs, origin.objective.facts.gives)
    return dict(origin.sampling) if name == facts.sampler or followed else {}


def inherited_settings(origin: Model | None, objective: Objective) -> dict[str, Any]:
    """What is stored beside the settings of a run: default sampling settings, and the ids that end a text."""
    sampling, ends = inherited_sampling(origin, objective), sorted(origin.ends) if origin is not None else []
    return ({"sampling": sampling} if sampling else {}) | ({"ends": ends} if ends else {})


def check_same_tokenizer(origin: Model, tokenizer: Tokenizer) -> None:
    """Refuse data that was tokenized for another network."""
    source, own = origin.folder, origin.tokenizer
    if own is not None and own.fingerprint != tokenizer.fingerprint:
        raise UserError(
            f"the data was tokenized with another tokenizer (fingerprint {tokenizer.fingerprint[:12]}) than "
            f"{source} ({own.fingerprint[:12]}). Use --tokenizer {source}."
        )
    if origin.spec.vocab < tokenizer.size or origin.mask != tokenizer.mask:
        raise UserError(
            f"{source} has {origin.spec.vocab} ids with mask {origin.mask}; the data's tokenizer has "
            f"{tokenizer.size} with mask {tokenizer.mask}."
        )


def inherited_parts(origin: Model, objective: Objective) -> dict[str, Any]:
    """The parts and the state of the objective, if what a phase starts from was trained with the same one."""
    if not origin.parts or type(origin.objective) is not type(objective):
        return {}
    wanted = sizes_of(objective.parts(vocab=origin.spec.vocab, width=origin.spec.width))
    for name, size in sizes_of(origin.parts).items():
        if wanted.get(name) != size:
            raise UserError(
                f"in {origin.folder} the objective's {name} has the size {size}, and these settings ask for "
                f"{wanted.get(name, 'none')}: give it the settings it was trained with, or leave --init out."
            )
    # Copies: what was loaded is mapped from a file, where the alignment of a tensor changes the order of its sums.
    state = {name: value.clone() for name, value in origin.state.items()}
    return {"parts": {name: deepcopy(part) for name, part in origin.parts.items()}, "state": state}


def sizes_of(parts: Mapping[str, nn.Module]) -> dict[str, tuple[int, ...]]:
    """The sizes of all tensors of the parts of an objective, by name."""
    return {
        f"{name}.{key}": tuple(value.shape)
        for name, part in parts.items()
        for key, value in part.state_dict().items()
    }
