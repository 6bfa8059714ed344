"""Visible keys: a masked position is seen by nobody but itself, so a question need not show the other masks."""

from dataclasses import replace

import pytest
import torch

from unmask.diffusion.any_order import AnyOrder
from unmask.diffusion.mdlm import MDLM
from unmask.errors import UserError
from unmask.model.backbones.transformer import Architecture, Transformer
from unmask.model.checkpoint import load, save
from unmask.model.denoiser import Denoiser
from unmask.model.passes.visible import without_masks
from unmask.model.passes.whole import hidden_states, logits_at, whole
from unmask.model.passing import Pass, VisibleKeys
from unmask.sampling.masked import fill
from unmask.sampling.policies.planned import FirstHitting, Groups
from unmask.text.prompt.canvas import blank

MASK, LENGTH = 10, 12
SPEC = Architecture(vocab=11, length=LENGTH, width=16, blocks=3, heads=2, cond=0, visible_keys=True, mask=MASK)


def network(*, before: bool = False) -> Transformer:
    torch.manual_seed(0)
    net = Transformer(replace(SPEC, reads_before=before))
    with torch.no_grad():
        for p in net.parameters():
            p.normal_(0, 0.5)
    return net.eval()


@pytest.fixture(scope="module", params=[False, True], ids=["at its place", "before"])
def net(request):
    return network(before=request.param).requires_grad_(False)


@pytest.fixture
def x():
    source = torch.Generator().manual_seed(1)
    tokens = torch.randint(MASK, (4, LENGTH), generator=source)
    return tokens.masked_fill(torch.rand(4, LENGTH, generator=source) < 0.6, MASK)


def everywhere(net, x, **options):
    return hidden_states(net, x, None, **options).flatten(0, 1)


def test_a_question_without_the_other_masks_is_the_whole_row_to_1e_6(net, x):
    rows = (x == MASK).flatten().nonzero().squeeze(1)[::4]
    p = whole(net.spec, x, rows=rows)
    assert p.x.shape[1] < LENGTH
    torch.testing.assert_close(net.run(p).hidden, everywhere(net, x)[rows], atol=1e-6, rtol=1e-6)


def test_padding_is_left_out_and_a_batch_is_its_rows_alone(net, x):
    lengths, rows = torch.tensor([12, 9, 4, 12]), torch.tensor([1, 5, 13, 26, 40, 47])
    found = hidden_states(net, x, None, rows=rows, lengths=lengths)
    torch.testing.assert_close(found, everywhere(net, x, lengths=lengths)[rows], atol=1e-6, rtol=1e-6)
    for number, at in enumerate(rows.tolist()):
        row, length = at // LENGTH, int(lengths[at // LENGTH])
        alone = hidden_states(net, x[row : row + 1, :length], None, rows=torch.tensor([at % LENGTH]))
        torch.testing.assert_close(alone[0], found[number], atol=1e-6, rtol=1e-6)


def test_no_position_depends_on_the_embedding_of_a_mask_that_is_not_its_own(x):
    net, kept = network(), []
    net.vocab_embed.register_forward_hook(lambda *given: kept.append(given[-1]) or given[-1])
    hidden = net.run(Pass(x, net.spec.own_rule)).hidden
    for i in range(LENGTH):
        (slope,) = torch.autograd.grad(hidden[:, i].square().sum(), kept[0], retain_graph=True)
        felt, others = slope.abs().sum(-1) > 0, torch.arange(LENGTH) != i
        assert not bool(felt[(x == MASK) & others].any())
        assert bool(felt[(x != MASK) | ~others].all())


def test_a_drawn_token_changes_the_states_of_all_visible_ones_so_nothing_is_remembered(net, x):
    seen = x[0] != MASK
    after = x[:1].clone()
    after[0, int((~seen).nonzero()[0])] = 3
    before, now = everywhere(net, x[:1])[seen], everywhere(net, after)[seen]
    assert bool(((before - now).abs().amax(1) > 1e-4)[1:].all())


@pytest.mark.parametrize("policy", [FirstHitting(), Groups(calls=4)])
def test_samples_are_those_of_a_network_that_is_shown_every_mask(net, policy):
    def slow(tokens, sigma, rows):
        return net.head(everywhere(net, tokens)[rows])

    drawn = [list(fill(one, blank(3, LENGTH, mask=MASK), policy))[-1].canvas.tokens for one in (net, slow)]
    assert torch.equal(*drawn)


def test_a_window_ahead_and_masks_hide_together(net, x):
    """The attention rule of a warm start replaces the network's own one, and masks stay unseen."""
    allowed, rows = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril(2), torch.tensor([3, 17])
    other = x.clone()
    other[x == MASK] = MASK
    p = whole(net.spec, x, rows=rows, allowed=allowed)
    rule = ((x != MASK)[:, None] | torch.eye(LENGTH, dtype=torch.bool)) & allowed
    assert torch.equal(p.sees.visible, rule)


def test_few_masks_are_not_worth_leaving_out(net):
    p = Pass(torch.zeros(2, LENGTH, dtype=torch.long), VisibleKeys(MASK), wanted=torch.tensor([3]))
    assert without_masks(p, MASK) is p


def test_checkpoints_say_so_and_what_cannot_use_it_is_refused(tmp_path):
    net = network()
    found = load(save(tmp_path, net, mask=MASK, objective=MDLM(), tokenizer=None))
    assert found.spec == net.spec
    x = torch.full((1, LENGTH), MASK)
    torch.testing.assert_close(
        logits_at(found.network, x, None, torch.tensor([3])), logits_at(net, x, None, torch.tensor([3]))
    )
    with pytest.raises(UserError, match="visible_keys is for objectives that read a row with masks once"):
        Denoiser(net, AnyOrder())
    with pytest.raises(UserError, match="it reads tokens"):
        hidden_states(net, torch.zeros(1, LENGTH, 16))
