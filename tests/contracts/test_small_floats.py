"""Every backbone computes and learns with products in bfloat16 on a CPU, and says nearly what it says in float32.

Where such products end the process, float32 is compared with itself.
"""

from dataclasses import replace

import pytest
import torch

from contracts.members import LENGTH, LETTERS, network_of, spec_of
from contracts.test_backbones import CASES
from unmask.model.passes.whole import hidden_states
from unmask.processes.device import small_floats

KIND = torch.float32 if small_floats("bfloat16") else torch.bfloat16
SIGMA = torch.tensor([0.3, 1.2, 2.5])


MODULATED = replace(spec_of("transformer"), cond=8)
SPECS = {
    **{f"{name}, causal {causal}": spec_of(name, causal=causal) for name, causal in CASES},
    "transformer, modulated": MODULATED,
    "transformer, modulated by the noise level": replace(MODULATED, time_conditioning=True),
    "transformer, visible keys": replace(spec_of("transformer"), visible_keys=True),
}


@pytest.mark.parametrize("case", SPECS)
def test_logits_and_gradients_are_nearly_those_of_float32(case):
    x = torch.randint(LETTERS.size, (3, LENGTH), generator=torch.Generator().manual_seed(0))
    network = network_of(SPECS[case], scale=0.25).requires_grad_()
    told = []
    for kind in (torch.float32, KIND):
        network.compute = kind
        logits = network.head(hidden_states(network, x, SIGMA))
        assert logits.dtype == torch.float32
        network.zero_grad()
        logits.logsumexp(-1).sum().backward()
        gradients = [p.grad.flatten() for p in network.parameters() if p.grad is not None]
        with torch.no_grad():
            without = network.head(hidden_states(network, x, SIGMA))
        told.append((logits.detach(), torch.cat(gradients), without))
    for usual, small in zip(*told, strict=True):
        assert (small - usual).norm() < 0.05 * usual.norm()
