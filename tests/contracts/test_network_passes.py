"""Every pass and memory of every backbone: read in pieces, in blocks, in any order and together is read at once."""

from dataclasses import replace

import pytest
import torch

from contracts.members import LENGTH, LETTERS, network_of, spec_of
from contracts.test_backbones import CASES, close
from unmask.errors import UserError
from unmask.model.backbone import build
from unmask.model.passes.aimed import aimed_pass
from unmask.model.passes.doubled import check_blockwise
from unmask.model.passes.pieces import BlockRule, piece
from unmask.model.passes.together import run_together
from unmask.model.passes.visible import without_masks
from unmask.model.passes.whole import logits_at, whole
from unmask.model.passing import ATTENTION, Apart, Blocks, Causal, Empty, Full, Pass, Rule, VisibleKeys, Within

pytestmark = pytest.mark.parametrize(("name", "causal"), CASES)
SIZE = 4


@pytest.fixture
def net(name, causal):
    return network_of(spec_of(name, causal=causal))


@pytest.fixture
def x():
    return torch.randint(LETTERS.size, (3, LENGTH), generator=torch.Generator().manual_seed(0))


def run(net, *arguments, **options):
    with torch.no_grad():
        return net.run(Pass(*arguments, **options))


def rule_by_hand(sees) -> torch.Tensor:
    i, j = torch.arange(LENGTH)[:, None], torch.arange(LENGTH)
    return {
        Full: (i == i) & (j == j),
        Causal: j <= i,
        Blocks: j // SIZE <= i // SIZE,
        Within: (i - j).abs() <= 2,
    }[type(sees)]


KINDS = [Full(), Causal(), Blocks(SIZE), Within(2)]


def test_who_sees_whom_is_a_value_of_the_pass_and_a_mismatch_is_refused_by_name(net, x, name):
    for sees in KINDS:
        if type(sees) not in net.spec.abilities.sees:
            with pytest.raises(UserError, match=f"the backbone '{name}' cannot run a pass whose positions"):
                run(net, x, sees)
            continue
        found = run(net, x, sees).hidden
        if Rule in net.spec.abilities.sees:
            close(found, run(net, x, Rule(rule_by_hand(sees))).hidden)


def test_masks_are_hidden_from_each_other_and_may_be_left_out(net, x):
    if not (net.spec.abilities.positions and VisibleKeys in net.spec.abilities.sees):
        return
    mask = LETTERS.mask
    x[:, ::2] = mask
    told = run(net, x, Rule((x != mask)[:, None] | torch.eye(LENGTH, dtype=torch.bool))).hidden.flatten(0, 1)
    wanted = torch.tensor([3, 4, 20, 26])
    short = without_masks(Pass(x, VisibleKeys(mask), wanted=wanted), mask)
    assert short.x.shape[1] < LENGTH
    close(run(net, x, VisibleKeys(mask)).hidden.flatten(0, 1), told)
    with torch.no_grad():
        close(net.run(short).hidden, told[wanted])


def test_what_a_network_cannot_do_is_refused_in_one_place(net, x, name):
    can = net.spec.abilities
    if not can.positions:
        with pytest.raises(UserError, match=f"the backbone '{name}' reads positions in order"):
            run(net, x, net.spec.own_rule, torch.arange(LENGTH))
    if not (can.memory or can.carried):
        with pytest.raises(UserError, match=f"the backbone '{name}' has no memory"):
            run(net, x, net.spec.own_rule, memory=Empty())
    if not net.spec.blockwise:
        with pytest.raises(UserError, match=f"the backbone '{name}' cannot look block by block"):
            check_blockwise(net.spec)


def test_wanted_elements_are_those_of_the_whole_with_and_without_a_memory(net, x):
    wanted = torch.tensor([30, 2, 17, 5])
    sees = net.spec.own_rule
    close(run(net, x, sees, wanted=wanted).hidden, run(net, x, sees).hidden.flatten(0, 1)[wanted])
    if net.spec.abilities.memory:
        kept = run(net, x[:, :5], sees, memory=Empty()).memory
        every = run(net, x[:, 5:], sees, memory=kept).hidden
        close(run(net, x[:, 5:], sees, memory=kept, wanted=wanted[1:]).hidden, every.flatten(0, 1)[wanted[1:]])


def test_elements_in_another_order_with_their_positions_are_the_same_rows(net, x):
    if not net.spec.abilities.positions:
        return
    order = torch.stack([torch.randperm(LENGTH, generator=torch.Generator().manual_seed(i)) for i in range(3)])
    for sees in (Full(), Blocks(SIZE), Within(2)):
        told = run(net, x, sees).hidden
        found = run(net, x.gather(1, order), sees, order).hidden
        close(found, told.gather(1, order[..., None].expand(-1, -1, told.shape[-1])))


def test_a_prefix_that_is_read_once_serves_any_number_of_passes(net, x):
    """The prefix does not see what comes after it, so this is the block rule with two blocks."""
    if not (net.spec.abilities.memory and net.spec.abilities.positions):
        return
    prefix, rest = x[:, :5], x[:, 5:]
    kept = run(net, prefix, Full(), memory=Empty()).memory
    place = torch.arange(LENGTH)
    rule = Rule((place[:, None] >= 5) | (place < 5))
    for other in (rest, (rest + 1) % LETTERS.size):
        told = run(net, torch.cat((prefix, other), 1), rule).hidden[:, 5:]
        close(run(net, other, Full(), memory=kept, keep=0).hidden, told)
    assert kept.filled == 5


def test_a_memory_written_in_any_order_is_that_written_in_order(net, x):
    """Each token sees itself alone while it is written; what asks then sees them all."""
    if not (net.spec.abilities.memory and net.spec.abilities.positions):
        return
    text, asking = x[:, :-2], x[:, -2:]
    told = run(net, text, Within(0), memory=Empty()).memory
    order = torch.stack([torch.randperm(LENGTH - 2, generator=torch.Generator().manual_seed(i)) for i in range(3)])
    memory = Empty()
    for some in order.split([3, 1, 4, 2], 1):
        memory = run(net, text.gather(1, some), Within(0), some, memory=memory).memory
    assert memory.filled == told.filled == LENGTH - 2
    after = torch.arange(LENGTH - 2, LENGTH)
    answers = [run(net, asking, Full(), after, memory=one, keep=0).hidden for one in (told, memory)]
    close(answers[1], answers[0])
    half = run(net, text.gather(1, order[:, :4]), Within(0), order[:, :4], memory=Empty()).memory
    for row, places in enumerate(order[:, :4].tolist()):  # with gaps: the row with the written tokens alone
        seen = sorted(places)
        elements, at = torch.cat((text[row, seen], asking[row]))[None], torch.tensor([*seen, *after.tolist()])
        i, j = torch.arange(6)[:, None], torch.arange(6)
        alone = run(net, elements, Rule((i == j) | (i >= 4)), at).hidden[0, 4:]
        close(run(net, asking, Full(), after, memory=half, keep=0).hidden[row], alone)


def test_a_position_that_is_written_again_is_refreshed(net, x):
    if not (net.spec.abilities.memory and net.spec.abilities.positions):
        return
    other = x.clone()
    other[:, 3:6] = (other[:, 3:6] + 1) % LETTERS.size
    stale = run(net, x[:, :-1], Within(0), memory=Empty()).memory
    fresh = run(net, other[:, 3:6], Within(0), torch.arange(3, 6), memory=stale).memory
    told = run(net, other[:, :-1], Within(0), memory=Empty()).memory
    assert fresh.filled == LENGTH - 1
    asking, place = x[:, -1:], torch.tensor([LENGTH - 1])
    close(*(run(net, asking, Full(), place, memory=one, keep=0).hidden for one in (fresh, told)))


def test_rows_read_on_in_different_orders_see_what_they_read_before(net, x):
    """Any order: causal in the order of reading, with the true positions."""
    if not (net.spec.abilities.memory and net.spec.abilities.positions):
        return
    order = torch.stack([torch.randperm(LENGTH, generator=torch.Generator().manual_seed(i)) for i in range(3)])
    tokens = x.gather(1, order)
    told = run(net, tokens, Causal(), order).hidden
    memory, parts, at = Empty(), [], 0
    for size in (1, 4, 1, 6):
        some = slice(at, at + size)
        states = run(net, tokens[:, some], Causal(), order[:, some], memory=memory)
        memory, at = states.memory, at + size
        parts.append(states.hidden)
    close(torch.cat(parts, 1), told)


def test_in_one_stream_from_left_to_right_a_network_is_the_autoregressive_one(net, x, name, causal):
    """And in any order a token is read on with the aim that it has in one pass."""
    if not net.spec.abilities.aims:
        place = torch.arange(LENGTH)
        with pytest.raises(UserError, match="rotate" if net.spec.abilities.positions else "reads positions in order"):
            run(net, x, net.spec.own_rule, place, aim=place)
        return
    spec = replace(net.spec, causal=False, reads_before=True)
    with torch.no_grad():
        told = net.head(run(net, x, Causal()).hidden)[:, :-1]
        rows = torch.arange(x.numel())
        found = logits_at(same_weights(net, spec), x, None, rows, rank=torch.arange(LENGTH).expand_as(x))
    close(found.view(*x.shape, -1)[:, 1:], told)
    rank = torch.stack([torch.randperm(LENGTH, generator=torch.Generator().manual_seed(i)) for i in range(3)])
    p = aimed_pass(spec, x, rank, rows=rows)
    whole_row, memory, parts = run(net, p.x, Causal(), p.position, aim=p.aim).hidden, Empty(), []
    for some in torch.arange(LENGTH).split([3, 1, 4, LENGTH - 8]):
        states = run(net, p.x[:, some], Causal(), p.position[:, some], aim=p.aim[:, some], memory=memory)
        memory = states.memory
        parts.append(states.hidden)
    close(torch.cat(parts, 1), whole_row)


def same_weights(net, spec):
    twin = build(spec)
    twin.load_state_dict(net.state_dict())
    return twin.eval()


def test_blocks_with_a_cache_are_the_doubled_pass_of_training(net, x):
    if not net.spec.blockwise:
        return
    noisy = x.clone()
    noisy[:, ::SIZE] = LETTERS.mask
    with torch.no_grad():
        told = logits_at(net, noisy, None, torch.arange(x.numel()), clean=x, size=SIZE).view(3, LENGTH, -1)
    rule, memories, found = BlockRule(SIZE, 10**6, net.spec.before), [Empty()] * 3, []
    for first in range(0, LENGTH, SIZE):
        passes = [
            piece(
                rule,
                torch.cat((x[r, memories[r].filled : first], noisy[r, first : first + SIZE])),
                memories[r],
                first=first,
                wanted=torch.arange(SIZE),
                lead=int(x[r, first - 1]) if first else None,
            )
            for r in range(3)
        ]
        with torch.no_grad():
            states = run_together(net, passes)
            found.append(net.head(torch.stack([one.hidden for one in states])))
        memories = [one.memory for one in states]
    close(torch.cat(found, 1), told)


def test_passes_of_all_kinds_together_are_each_alone(net, x):
    sees, can = net.spec.own_rule, net.spec.abilities
    passes = [
        whole(net.spec, x, torch.rand(3)),
        whole(net.spec, x[:2, :7], torch.rand(2), rows=torch.tensor([9, 1])),
        whole(net.spec, x, torch.rand(3), lengths=torch.tensor([5, LENGTH, 9]), rows=torch.tensor([30, 2, 13])),
        Pass(x[:1, :3], sees, sigma=torch.rand(1)),
    ]
    if can.memory:
        kept = run(net, x[:, :4], Causal(), memory=Empty()).memory if Causal in can.sees else None
        passes += [Pass(x[:, 4:6], Causal(), memory=kept, sigma=torch.rand(3))] if kept is not None else []
        passes += [Pass(x[:1], sees, memory=Empty(), sigma=torch.rand(1), wanted=torch.tensor([3]))]
    if Rule in can.sees:
        passes += [Pass(x, Rule(rule_by_hand(Within(2))), sigma=torch.rand(3), wanted=torch.tensor([7, 20]))]
    positions = []
    with torch.no_grad():
        alone = [net.run(p) for p in passes]
        found = run_together(net, passes, lambda *numbers: positions.append(numbers))
    for p, one, told in zip(passes, found, alone, strict=True):
        real = torch.ones(p.x.shape[:2], dtype=torch.bool)
        if p.wanted is None:
            close(one.hidden[real], told.hidden[real])
        else:
            close(one.hidden, told.hidden)
        assert (one.memory is None) == (told.memory is None)
        assert one.memory is None or one.memory.filled == told.memory.filled
    if Apart in can.sees:
        assert len(positions) == 1, "one pass"
        assert positions[0][1] == 0, "no padding"


def test_a_toy_of_one_file_can_run_every_pass(name, causal):
    if name == "toy-attention":
        assert spec_of(name, causal=causal).abilities.sees == ATTENTION
        assert spec_of(name, causal=causal).blockwise is not causal
