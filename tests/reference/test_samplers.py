"""The recorded runs of the reference, with its uniforms handed in, token for token and call for call."""

from functools import partial

import numpy as np
import pytest
import torch

from model.golden import FOLDER, network
from reference import samplers as literal
from unmask.model.passes.whole import logits_at, read_on
from unmask.model.passing import Empty


@pytest.fixture(scope="module")
def runs():
    with np.load(FOLDER / "dit_mid_runs.npz") as arrays:
        return dict(arrays)


def uniforms(runs, key):
    """The recorded uniforms: 24 bits each, kept where a position was hidden; elsewhere they decide nothing."""
    shape = tuple(runs[f"{key}_shape"])
    where = np.unpackbits(runs[f"{key}_where"], count=int(np.prod(shape[:-1]))).astype(bool).reshape(shape[:-1])
    low, middle, high = runs[f"{key}_bits"].astype(np.int64)
    full = np.full(shape, 0.5, dtype=np.float32)
    full[where] = (low + 256 * middle + 65536 * high).reshape(-1, shape[-1]) / 2**24
    return iter(torch.as_tensor(full))


MASK = 9
BLANK = torch.full((2, 17), MASK)
RUNS = {
    "run_ddpm_subs_6_nr": lambda net, u: literal.ancestral(net, BLANK, steps=6, mask=MASK, uniforms=u),
    "run_ddpm_subs_6_raw": lambda net, u: literal.ancestral(
        net, BLANK, steps=6, mask=MASK, uniforms=u, noise_removal=False
    ),
    "run_ddpm_cache_subs_48_nr": lambda net, u: literal.cached(net, BLANK, steps=48, mask=MASK, uniforms=u),
    "run_analytic_subs_5_nr": lambda net, u: literal.analytic(
        net, BLANK, steps=5, mask=MASK, uniforms=u, scores=literal.subs_scores(MASK)
    ),
    "run_analytic_sedd_5_nr": lambda net, u: literal.analytic(
        net, BLANK, steps=5, mask=MASK, uniforms=u, scores=literal.sedd_scores
    ),
}


@pytest.mark.parametrize("key", RUNS)
def test_literal_samplers_repeat_the_recorded_runs_token_for_token(runs, key):
    assert runs["mask"] == MASK
    net, shown = network("dit_mid", time_conditioning="sedd" in key), []

    def watched(x, sigma, rows):
        shown.append(x.clone())
        return logits_at(net, x, sigma, rows)

    with torch.no_grad():
        *_, result = RUNS[key](watched, uniforms(runs, key))
    assert torch.equal(result, torch.as_tensor(runs[f"{key}_x"]))
    assert torch.equal(torch.stack(shown), torch.as_tensor(runs[f"{key}_inputs"]).long())


def test_the_literal_semi_autoregressive_run_is_the_recorded_one(runs):
    with torch.no_grad():
        result = literal.semi_autoregressive(
            partial(logits_at, network("dit_mid")),
            BLANK,
            stride=int(runs["semiar_stride"]),
            strides=int(runs["semiar_num_strides"]),
            dt=float(runs["semiar_dt"]),
            mask=MASK,
            uniforms=uniforms(runs, "semiar"),
        )
    assert torch.equal(result, torch.as_tensor(runs["semiar_x"]))


def test_the_autoregressive_run_with_a_cache_is_the_recorded_one_without():
    with np.load(FOLDER / "ar_tiny_sample.npz") as arrays:
        case = {key: torch.as_tensor(arrays[key]) for key in arrays.files}
    read, net = [], network("ar_tiny")
    memory = Empty(16)

    def reader(x_t, sigma, rows):
        nonlocal memory
        position = int(rows[0]) % x_t.shape[1]
        read.append(position - memory.filled)
        hidden, memory = read_on(net, x_t[:, memory.filled : position], memory)
        return net.head(hidden[:, -1])

    x = torch.full_like(case["sample_x"], int(case["mask_index"])).index_fill(1, torch.tensor([0]), int(case["bos"]))
    with torch.no_grad():
        result = literal.autoregressive(reader, x, gumbel=case["sample_gumbel"], mask=int(case["mask_index"]))
    assert torch.equal(result, case["sample_x"])
    assert read == [1] * 15  # every token is read once
