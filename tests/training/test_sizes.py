"""Sizes by data, machine and minutes: small for little of any of them, within the time and the passes."""

from dataclasses import replace

import numpy as np
import pytest

from unmask.errors import UserError
from unmask.model.backbones.transformer import Architecture
from unmask.training.optimizers.adamw import AdamW
from unmask.training.optimizers.auto import Auto
from unmask.training.settings import Text, Train, settle_training
from unmask.training.sizes import (
    ASIDE,
    EACH,
    FEWEST,
    LADDER,
    LARGE,
    MANY,
    PASSES,
    inner_parameters,
    optimizer_for,
    packed_for,
    seconds_per_step,
    size_run,
    vocabulary_for,
)

ASKED = settle_training(Train())
ROWS, VOCAB, RATE = 100_000, 1024, 1e11


def found(asked: Train = ASKED, *, minutes: float = 10, rows: int = ROWS, rate: float = RATE, **more) -> Train:
    return size_run(asked, minutes=minutes, rows=rows, vocab=VOCAB, rate=rate, **more)


def trained(asked: Train) -> int:
    return asked.steps * asked.optim.batch * asked.text.length


@pytest.mark.parametrize("rows", [10, 1000, 10**8])
@pytest.mark.parametrize("minutes, rate", [(0.5, 1e10), (10, 1e11), (600, 1e13)])
def test_a_run_keeps_to_its_minutes_and_to_a_sensible_number_of_passes(rows, minutes, rate):
    one = found(minutes=minutes, rows=rows, rate=rate)
    seconds = one.steps * seconds_per_step(one, rows=rows, vocab=VOCAB, rate=rate)
    assert one.steps == FEWEST or seconds <= 60 * minutes * (1 - ASIDE)
    assert one.steps == FEWEST or one.steps * one.optim.batch <= PASSES * rows
    smallest = one.model.width == LADDER[0][0]
    assert smallest or trained(one) >= EACH * inner_parameters(one.model, one.text.length)
    assert one.optim.batch <= max(1, rows // 4)


def test_more_time_a_faster_machine_and_more_text_never_give_a_smaller_network():
    def widths(name: str, values: list[float]) -> list[int]:
        return [found(**{"rows": ROWS, name: value}).model.width for value in values]

    for grown in (
        widths("minutes", [0.5, 10, 600]),
        widths("rate", [1e9, 1e11, 1e14]),
        widths("rows", [10, 1000, 10**8]),
    ):
        assert grown == sorted(grown)
        assert grown[0] < grown[-1]


def test_the_time_is_used_where_the_text_suffices():
    one = found(rows=10**8)
    assert one.steps * seconds_per_step(one, rows=10**8, vocab=VOCAB, rate=RATE) > 0.98 * 600 * (1 - ASIDE)


def test_what_was_given_stays():
    mine = replace(ASKED, model=Architecture(width=40, blocks=2, heads=2, tied=True), optim=Auto(batch=6, warmup=3))
    one = found(settle_training(mine), minutes=0.1, given={"model.width", "optim.batch", "optim.warmup"})
    assert (one.model, one.optim.batch, one.optim.warmup) == (settle_training(mine).model, 6, 3)
    assert one.optim.ema != mine.optim.ema
    with pytest.raises(UserError, match=r"--minutes, .* or --steps, but not both"):
        found(given={"steps"})
    with pytest.raises(UserError, match="more than 0"):
        found(minutes=-1)


def test_a_network_to_start_from_keeps_its_size():
    init = Architecture(width=96, blocks=5, heads=3, vocab=VOCAB, tied=True)
    one = found(settle_training(Train(init="somewhere")), init=init)
    slow = found(settle_training(Train(init="somewhere")), init=replace(init, width=384))
    assert one.model == slow.model == ASKED.model  # it is not used: the network is that of the checkpoint
    assert slow.steps < one.steps / 4


def test_a_large_network_to_start_from_takes_fewer_rows_at_a_time_and_more_steps():
    asked = settle_training(Train(init="somewhere", optim=AdamW()))
    large = Architecture(width=512, blocks=12, heads=8, vocab=VOCAB, tied=True)
    slow = found(asked, init=large, rows=10**6)
    assert slow.optim.batch < found(asked, init=replace(large, width=64)).optim.batch
    assert slow.steps >= MANY
    assert found(asked, init=large, rows=10**6, minutes=0.01).optim.batch == 1
    assert found(asked, init=large, rows=10**6, given={"optim.batch"}).optim.batch == asked.optim.batch


def test_a_network_to_start_from_has_the_optimizer_that_suits_its_size():
    asked = settle_training(Train(init="somewhere"))
    small = Architecture(width=128, blocks=4, heads=4, vocab=VOCAB, tied=True)
    large, short = replace(small, width=1024, blocks=12), replace(asked, text=replace(asked.text, length=16))
    assert optimizer_for(asked, small) == asked
    assert optimizer_for(asked, large).optim.name == "adamw"  # a third of the passes, and more
    many = replace(asked, optim=replace(asked.optim, batch=1024))
    assert optimizer_for(many, large) == many
    assert (asked.optim.name, optimizer_for(short, large).optim.name) == ("muon", "adamw")
    assert optimizer_for(short, large).optim.lr == LARGE
    assert optimizer_for(short, large, given={"optim.lr"}).optim.lr == asked.optim.lr
    assert optimizer_for(short, large, given={"optim.name"}) == short
    adapter = replace(short, adapter=replace(short.adapter, rank=4))
    assert optimizer_for(adapter, large) == adapter


def test_processes_share_a_batch_equally():
    assert found(world=3).optim.batch % 3 == 0


def test_little_text_gets_a_small_vocabulary():
    sizes = [vocabulary_for(size) for size in (1, 10**5, 10**6, 4 * 10**6, 10**7, 10**12)]
    assert sizes == [512, 512, 512, 2048, 4096, 4096]
    assert vocabulary_for(0) == 4096  # not known


def test_short_documents_are_packed_one_per_row_of_their_length():
    short, long = np.arange(5, 21), np.array([5, 20, 300])
    one = packed_for(ASKED, short)
    assert (one.text.pack, one.text.length) == ("rows", 24)
    assert packed_for(ASKED, short, given={"text.length"}).text.length == 128
    for other in (packed_for(ASKED, long), packed_for(ASKED, None)):
        assert (other.text.pack, other.text.length) == ("stream", 128)
    asked = replace(ASKED, text=Text(pack="rows", length=9))
    assert packed_for(asked, short) == asked
