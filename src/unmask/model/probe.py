"""The self-test of a checkpoint: a fixed input, and the log-probabilities that its network must give for it."""

from collections.abc import Mapping
from typing import Any

import torch

from unmask.diffusion.objective import Objective, objective_of
from unmask.errors import UserError
from unmask.model.backbone import Backbone
from unmask.model.model import network_log_probs

TOLERANCE = 1e-3  # relative to 1 + |value|: float32 on another machine stays far within it
SEQUENCES, LONGEST, IDS = 2, 16, 8


def record_probe(network: Backbone, *, mask: int, objective: Objective | str) -> dict[str, Any]:
    """A probe of the current network: a few tokens, half of them hidden, and the log-probabilities of some ids."""
    a = network.spec
    g = torch.Generator().manual_seed(0)
    length = min(a.length, LONGEST)
    tokens = torch.randint(a.vocab, (SEQUENCES, length), generator=g)
    hidden = torch.rand(tokens.shape, generator=g) < 0.5
    tokens[hidden | (torch.arange(length) == 0)] = mask
    ids = torch.randint(a.vocab, (IDS,), generator=g).tolist()
    ids = sorted({id for id in ids if id != mask} or {id for id in range(a.vocab) if id != mask})
    probe = {"tokens": tokens.tolist(), "sigma": [0.5, 2.0], "ids": ids}
    return probe | {"log_probs": probe_answers(network, probe, mask=mask, objective=objective)}


def probe_answers(
    network: Backbone, probe: dict[str, Any], *, mask: int, objective: Objective | str
) -> list[list[float]]:
    """The log-probabilities of the probe's ids at its hidden positions, or at all positions if it is causal."""
    tokens = torch.tensor(probe["tokens"])
    device = network.device
    training = network.training
    with torch.no_grad():
        log_probs = network_log_probs(
            network.eval(),
            tokens.to(device),
            mask=mask,
            objective=objective,
            sigma=torch.tensor(probe["sigma"], device=device),
        )
    network.train(training)
    causal = objective_of(objective).facts.causal
    rows = torch.ones_like(tokens, dtype=torch.bool) if causal else tokens == mask
    return log_probs.cpu()[rows][:, probe["ids"]].tolist()


def fault(probe: Mapping[str, Any], *, vocab: int, mask: int) -> str | None:
    """What is wrong with a recorded probe: it must be as small as ours, of the right types, and hide a token."""
    for name in ("tokens", "sigma", "ids", "log_probs"):
        if not isinstance(probe.get(name), list) or not probe[name]:
            return f"it has no list {name!r}"
    tokens, sigma, ids, answers = (probe[name] for name in ("tokens", "sigma", "ids", "log_probs"))
    if len(tokens) != SEQUENCES or not all(isinstance(row, list) and 0 < len(row) <= LONGEST for row in tokens):
        return f"tokens must be {SEQUENCES} rows of 1 to {LONGEST}"
    if len({len(row) for row in tokens}) > 1 or len(ids) > IDS:
        return f"rows must have one length, and there are at most {IDS} ids"
    if not all(type(id) is int and 0 <= id < vocab for row in (*tokens, ids) for id in row):
        return f"ids must be whole numbers from 0 to {vocab - 1}"
    if not any(mask in row for row in tokens):
        return "it hides no token"
    if len(sigma) != SEQUENCES or not all(type(one) in (int, float) and 0 <= one <= 1000 for one in sigma):
        return f"sigma must be {SEQUENCES} noise levels"
    if len(answers) > SEQUENCES * LONGEST or not all(
        isinstance(row, list) and all(type(one) in (int, float) for one in row) for row in answers
    ):
        return "log_probs must be rows of numbers"
    return None


def check(network: Backbone, probe: dict[str, Any], *, mask: int, objective: Objective | str) -> float:
    """The largest difference from the recorded answers, relative to 1 + |recorded|; refused if it is too large."""
    wrong = fault(probe, vocab=network.spec.vocab, mask=mask)
    if wrong is not None:
        raise UserError(f"the self-test in unmask.json is damaged ({wrong}): save the checkpoint again.")
    recorded, seen = probe["log_probs"], probe_answers(network, probe, mask=mask, objective=objective)
    if [len(row) for row in recorded] != [len(row) for row in seen]:
        raise UserError("the self-test in unmask.json is damaged (an answer is missing): save the checkpoint again.")
    pairs = [(s, t) for row, told_row in zip(seen, recorded, strict=True) for s, t in zip(row, told_row, strict=True)]
    wrong_pair = next(((s, t) for s, t in pairs if not abs(s - t) / (1 + abs(t)) <= TOLERANCE), None)  # NaN too
    if wrong_pair is not None:
        s, t = wrong_pair
        raise UserError(
            f"the self-test failed: the network gives a log-probability of {s:.4f} where {t:.4f} was recorded. Its "
            "weights are not those that were saved (two tensors may be swapped): copy or save the checkpoint again."
        )
    return max(abs(s - t) / (1 + abs(t)) for s, t in pairs)
