"""A network and an objective together: log p(x_0 | x_t)."""

from jaxtyping import Float, Int
from torch import Tensor

from unmask.diffusion import d3pm
from unmask.diffusion import mdlm as subs
from unmask.errors import UserError, unknown
from unmask.model.backbones.attention import Cache
from unmask.model.backbones.transformer import Transformer

OBJECTIVES = ("mdlm", "d3pm", "sedd", "ar")


def check_objective(objective: str) -> str:
    if objective not in OBJECTIVES:
        raise unknown("objective", objective, OBJECTIVES)
    return objective


def log_probs(
    network: Transformer,
    x_t: Int[Tensor, "b l"],
    *,
    mask: int,
    objective: str = "mdlm",
    sigma: Float[Tensor, " b"] | None = None,
) -> Float[Tensor, "b l v"]:
    """What the network believes everywhere (b l v): for inspection, not for loops over large vocabularies.

    mdlm and sedd copy what is visible and never predict the mask; d3pm is a plain softmax; ar's row i predicts the
    token after token i, the mask with the logit −1000 (probability zero) as in the published baseline.
    """
    check_objective(objective)
    vocab = network.architecture.vocab
    if x_t.numel() and not 0 <= int(x_t.min()) <= int(x_t.max()) < vocab:
        seen = next(id for id in x_t.flatten().tolist() if not 0 <= id < vocab)
        raise UserError(f"id {seen} is outside the network's vocabulary of {vocab}: give ids 0 to {vocab - 1}.")
    if objective == "ar":
        logits = network.head(network.extend(x_t, Cache(x_t.shape[1])))
        logits[..., mask] = -1000.0
        return logits.log_softmax(-1)
    if network.architecture.time_conditioning and sigma is None:
        raise UserError("this network is conditioned on the noise level: give sigma, one number a sequence.")
    logits = network.head(network.trunk(x_t, sigma))
    if objective == "d3pm":
        return d3pm.row_log_probs(logits.flatten(0, 1), mask=mask).unflatten(0, x_t.shape)
    return subs.log_probs(logits, x_t, mask=mask)
