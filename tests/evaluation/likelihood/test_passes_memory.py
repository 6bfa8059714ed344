"""A network with a memory is evaluated row after row: one causal pass over the text, shared by processes or not."""

from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
import torch

from unmask.diffusion.autoregressive import Autoregressive
from unmask.diffusion.clean import CleanRows
from unmask.evaluation.likelihood.estimators import estimator
from unmask.evaluation.likelihood.passes import carried_batches, evaluate, summary
from unmask.model.backbones.transformer_xl import TransformerXL, TransformerXLSpec
from unmask.model.denoiser import NetworkView
from unmask.model.passes.whole import logits_at
from unmask.processes.team import Alone
from unmask.text.layout import Marks, cut, layout_of
from unmask.text.stretch import Document

MASK = 9
LEADS = Marks(bos=0, eos=0, leads=True)


@dataclass(frozen=True)
class OneOfTwo(Alone):
    """A process that sees what its share of the work gives."""

    rank: int = 0
    world: int = 2


def network(**changes) -> TransformerXL:
    torch.manual_seed(0)
    spec = TransformerXLSpec(**{"vocab": 10, "width": 16, "blocks": 2, "heads": 2, "memory": 6, **changes})
    made = TransformerXL(spec)
    for p in made.parameters():
        torch.nn.init.normal_(p, std=0.3)
    return made.freeze()


def texts(*sizes: int) -> list[Document]:
    source = np.random.default_rng(0)
    return [Document(source.integers(1, MASK, size), size) for size in sizes]


def measured(net, passages, **options):
    return list(
        evaluate(NetworkView(net), passages, estimator("ar", objective=Autoregressive()), mask=MASK, **options)
    )


@pytest.mark.parametrize("changes", [{"memory": 100}, {"same_length": True}], ids=str)
def test_the_likelihood_of_a_stream_is_that_of_one_pass_over_it(changes):
    net, documents = network(**changes), texts(13, 21, 1)
    passages, _ = cut(documents, layout_of("stream", LEADS), length=5)
    found = measured(net, passages)[-1]
    stream = torch.tensor([[0, *[id for one in documents for id in (*one.tokens, 0)]]])
    whole = Autoregressive().nats(partial(logits_at, net), CleanRows(stream, mask=MASK)).bound
    assert np.nansum(found.nats) == pytest.approx(float(whole.sum()), rel=1e-5)
    assert summary(found).tokens == stream.shape[1] - 1
    apart = sum(
        float(
            Autoregressive()
            .nats(partial(logits_at, net), CleanRows(torch.from_numpy(p.tokens)[None], mask=MASK))
            .bound.sum()
        )
        for p in passages
    )
    assert abs(apart - float(whole.sum())) > 1e-2, "a test that cannot fail: the memory changes nothing"


@pytest.mark.slow
def test_documents_in_rows_of_their_own_begin_without_a_memory_and_share_batches():
    net, documents = network(), texts(12, 12, 7, 12, 3)
    passages, _ = cut(documents, layout_of("rows", LEADS), length=5)
    found = measured(net, passages, budget=10)[-1]
    for number, document in enumerate(documents):
        alone, _ = cut([document], layout_of("rows", LEADS), length=5)
        one = measured(net, alone)[-1]
        own = [i for i, passage in enumerate(passages) if passage.document == number]
        assert np.allclose(found.nats[0][own], one.nats[0], rtol=1e-5)
    groups = carried_batches(passages, budget=10)
    assert sorted(row for group in groups for rows in group for row in rows) == list(range(len(passages)))
    assert any(len(rows) == 2 for group in groups for rows in group)


@pytest.mark.slow
def test_two_processes_share_texts_and_never_split_one():
    net = network()
    passages, _ = cut(texts(12, 12, 7, 12, 3), layout_of("rows", LEADS), length=5)
    whole = measured(net, passages, budget=5)[-1].nats[0]
    shares = []
    for rank in range(2):
        groups = carried_batches(passages, budget=5)[rank::2]
        rows = [row for group in groups for some in group for row in some]
        *_, before_last = measured(net, passages, budget=5, team=OneOfTwo(rank=rank))
        shares.append(rows)
        assert np.allclose(before_last.nats[0][rows], whole[rows], rtol=1e-5)
    assert sorted(shares[0] + shares[1]) == list(range(len(passages)))
