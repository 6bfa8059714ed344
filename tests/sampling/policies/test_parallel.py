"""The parallel rules commit the sets they promise, as large as they may be and never empty."""

import itertools

import pytest
import torch

from sampling.laws import last
from unmask.diffusion.certainty import TIE
from unmask.sampling.masked import fill
from unmask.sampling.policies.confidence import Leftmost, Ordered
from unmask.sampling.policies.parallel import Certificate, EntropyBound, Klass, Threshold
from unmask.sampling.policies.planned import Groups
from unmask.text.prompt.canvas import blank, of_tokens

MASK, VOCAB, LENGTH, ROWS = 6, 7, 8, 40


def random_answers(seed):
    """A network with its own random, mostly sure answer for every row and position, whatever it is shown."""
    generator = torch.Generator().manual_seed(seed)
    table = torch.randn(ROWS, LENGTH, VOCAB, generator=generator, dtype=torch.float64)
    table = table * torch.rand(ROWS, LENGTH, 1, generator=generator, dtype=torch.float64) * 8
    return table, lambda x_t, sigma, rows: table.flatten(0, 1)[rows]


def first_sets(policy, seed=0):
    """For each row: the distributions of all positions, and the set committed at the first call."""
    table, network = random_answers(seed)
    p = table[..., :MASK].softmax(-1)
    step = next(fill(network, blank(ROWS, LENGTH, mask=MASK), policy))
    chosen = torch.zeros(ROWS * LENGTH, dtype=torch.bool).index_fill(0, step.rows, True).view(ROWS, LENGTH)
    return zip(p, chosen.tolist(), strict=True)


def ids(chosen):
    return [i for i, yes in enumerate(chosen) if yes]


@pytest.mark.parametrize("tau", [0.5, 0.9, 1.0])
def test_threshold_commits_all_that_are_sure_and_at_least_the_surest(tau):
    for p, chosen in first_sets(Threshold(tau)):
        top = p.amax(-1)
        sure = [i for i in range(LENGTH) if top[i] >= tau]
        if sure:
            assert ids(chosen) == sure
        else:
            (surest,) = ids(chosen)
            assert float(top.max() - top[surest]) < TIE


def test_certificate_commits_the_largest_set_whose_joint_mode_is_certain():
    sizes = set()
    for p, chosen in first_sets(Certificate()):
        doubt = (1 - p.amax(-1)).tolist()
        picked = ids(chosen)

        def certified(some, doubt=doubt):
            return sum(doubt[i] for i in some) + max(doubt[i] for i in some) <= 1

        assert len(picked) == 1 or certified(picked)
        larger = itertools.combinations(range(LENGTH), len(picked) + 1)
        assert not any(certified(some) for some in larger)
        sizes.add(len(picked))
    assert len(sizes) > 2


@pytest.mark.parametrize("gamma", [0.1, 1.0])
def test_entropy_bound_commits_the_largest_set_within_its_bound(gamma):
    sizes = set()
    for p, chosen in first_sets(EntropyBound(gamma)):
        h = (-(p * p.clamp(min=1e-300).log()).sum(-1)).tolist()
        picked = ids(chosen)

        def loss(some, h=h):
            return sum(h[i] for i in some) - max(h[i] for i in some)

        assert loss(picked) <= gamma
        assert all(loss(some) > gamma for some in itertools.combinations(range(LENGTH), len(picked) + 1))
        sizes.add(len(picked))
    assert len(sizes) > 1


def test_klass_waits_until_sure_positions_have_settled():
    """Answers that never move: one position a call until two comparisons are made, then all sure ones at once."""
    table, network = random_answers(1)
    sure = (table[..., :MASK].softmax(-1).amax(-1) >= 0.9).sum(1)
    sizes = [step.rows // LENGTH for step in fill(network, blank(ROWS, LENGTH, mask=MASK), Klass())]
    for row in range(ROWS):
        mine = [int((rows == row).sum()) for rows in sizes]
        left = max(int(sure[row]) - 2, 0)  # the surest go first, one in each of the first two calls
        assert mine[:3] == [1, 1, max(left, 1)]
        assert all(n <= 1 for n in mine[3:])


def test_klass_does_not_commit_together_while_answers_move():
    def network(x_t, sigma, rows):
        turn = int((x_t == MASK).sum()) % 2  # sure of one token, then of another
        logits = torch.zeros(len(rows), VOCAB, dtype=torch.float64)
        logits[:, turn] = 9.0
        return logits

    assert [len(step.rows) for step in fill(network, blank(1, 5, mask=MASK), Klass())] == [1] * 5


@pytest.mark.parametrize("calls", [1, 3, 8, 20])
@pytest.mark.parametrize(
    "make", [Ordered, Leftmost, lambda calls: Groups(calls=calls)], ids=["ordered", "left", "groups"]
)
def test_a_budget_of_calls_is_kept_for_every_number_of_blanks(calls, make):
    _, network = random_answers(2)
    tokens = torch.full((ROWS, LENGTH), MASK)
    for i in range(ROWS):
        tokens[i, : i % LENGTH] = 0
    step = last(fill(network, of_tokens(tokens, mask=MASK), make(calls=calls)))
    assert step.call == min(calls, LENGTH)
    assert not bool((step.canvas.tokens == MASK).any())


def test_group_sizes_grow_and_fill_every_blank():
    for blanks in range(1, 40):
        for calls in range(1, 12):
            ends = Groups(calls=calls).ends(torch.tensor([blanks]))[0].tolist()
            sizes = [b - a for a, b in itertools.pairwise([0, *ends])]
            assert sum(sizes) == blanks
            assert all(n >= 1 for n in sizes[: min(calls, blanks)])
            assert sizes[0] <= sizes[-1] or calls > blanks
