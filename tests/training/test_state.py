import shutil
from dataclasses import replace

import pytest
import torch

import unmask.model.checkpoint
from full_disk import files_at_most
from toys.objective import Toy
from toys.recurrent import RecurrentSpec
from training.small import MASK, Chain, network, settings
from unmask.diffusion.autoregressive import Autoregressive
from unmask.diffusion.diffusion_lm import DiffusionLM
from unmask.diffusion.plaid import Plaid
from unmask.diffusion.ssd_lm import SSDLM
from unmask.errors import UserError
from unmask.model import checkpoint
from unmask.model.backbones.transformer_xl import TransformerXLSpec
from unmask.settings import describe_settings
from unmask.training import metrics
from unmask.training import state as disk
from unmask.training.loop import begin, train
from unmask.training.note import Point
from unmask.training.optim import OPTIMIZERS
from unmask.training.phases import phases

CHAIN = Chain.make()


def save(out, state, point, keep=2):
    exports = disk.export_model(state)
    note = {
        "objective": describe_settings(exports.objective),
        "step": point.step,
        "settings": describe_settings(settings()),
    }

    def write(draft):
        checkpoint.write(draft, exports, {**note, "ema": bool(state.shadow)}, mask=MASK, tokenizer=None)

    return disk.save_state(out, state, point, write, keep=keep)


def steps(state, asked, start, count):
    run = train(state, phases(asked)[0], asked, CHAIN.batch(16), mask=MASK, start=start)
    return [next(run).loss for _ in range(count)]


RUNS = {
    "adamw": settings(),
    "without an average": settings(optim=replace(settings().optim, ema=0.0)),
    "muon": settings(optim=OPTIMIZERS.turned(settings().optim, "muon")),
    "an objective with parts and a state": settings(objective=Toy()),
    "plaid": settings(objective=Plaid(embed=4, ramp=5)),
    "diffusion-lm": settings(objective=DiffusionLM(steps=20, embed=4)),
    "ssd-lm": settings(objective=SSDLM(steps=20, block=5)),
    "a network that carries": settings(objective=Autoregressive(), model=RecurrentSpec(width=16)),
    "Transformer-XL": settings(
        objective=Autoregressive(), model=TransformerXLSpec(width=16, blocks=2, heads=2, memory=20, dropout=0.1)
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("run", RUNS)
def test_a_restored_state_goes_on_bit_for_bit(tmp_path, run):
    asked = RUNS[run]
    state = begin(network(asked), asked)
    steps(state, asked, 0, 3)
    folder = save(tmp_path, state, Point(step=3, tokens=9, seconds=1.5))
    told = steps(state, asked, 3, 3)
    torch.manual_seed(99)
    other = begin(network(asked), asked)
    assert disk.restore(folder, other) == Point(step=3, tokens=9, seconds=1.5)
    assert steps(other, asked, 3, 3) == told
    one, two = (
        [*some.learner.parameters(), *some.shadow, *some.learner.state.values(), some.memory]
        for some in (state, other)
    )
    for a, b in zip(one, two, strict=True):
        assert torch.equal(a, b) if a is not None else b is None


def test_the_last_checkpoints_and_the_best_are_kept(tmp_path):
    asked = settings()
    state = begin(network(asked), asked)
    for step in range(1, 7):
        save(tmp_path, state, Point(step=step, best_step=2 if step > 1 else 1, best=1.0))
    assert disk.steps_in(tmp_path) == [2, 5, 6]
    assert (tmp_path / "best").resolve() == disk.folder_of(tmp_path, 2)
    assert (tmp_path / "last").resolve() == disk.folder_of(tmp_path, 6)


def test_what_is_exported_is_the_average_and_loads_as_a_model(tmp_path):
    asked = settings()
    state = begin(network(asked), asked)
    steps(state, asked, 0, 5)
    model = unmask.model.checkpoint.load(save(tmp_path, state, Point(step=5)))
    assert model.ema
    assert model.step == 5
    assert model.settings["optim"]["lr"] == asked.optim.lr
    for p, average, weight in zip(model.network.parameters(), state.shadow, state.network.parameters(), strict=True):
        assert torch.equal(p, average)
        assert not torch.equal(p, weight)


def test_a_full_disk_is_an_error_and_the_last_good_checkpoint_stays(tmp_path):
    asked = settings()
    state = begin(network(asked), asked)
    good = save(tmp_path, state, Point(step=1))
    before = {path: path.read_bytes() for path in good.iterdir()}
    with files_at_most(20_000), pytest.raises(UserError, match="could not write"):
        save(tmp_path, state, Point(step=2))
    assert disk.steps_in(tmp_path) == [1]
    assert {path: path.read_bytes() for path in good.iterdir()} == before
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000001"]
    assert (tmp_path / "last").resolve() == good


def test_curves_that_cannot_be_written_are_an_error_without_a_traceback(tmp_path):
    with pytest.raises(UserError, match=r"could not write .*metrics\.jsonl: No such file"):
        metrics.append(tmp_path / "gone", {"step": 1})


def test_a_resumed_run_forgets_the_lines_behind_its_checkpoint_and_one_that_was_cut_short(tmp_path):
    for step in (1, 2, 3):
        metrics.append(tmp_path, {"step": step, "loss": 0.5})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "lo')
    metrics.forget(tmp_path, 2)
    assert [line["step"] for line in metrics.read_metrics(tmp_path)] == [1, 2]


@pytest.mark.parametrize(
    "odd", [b"\xff\xfe", b'{"step": "two"}', b'{"step": true}', b"7", b"[" * 100_000, b"", b"{}"]
)
def test_lines_that_are_not_ours_are_passed_over_and_dropped(tmp_path, odd):
    good = b'{"step": 1, "loss": 0.5}'
    (tmp_path / "metrics.jsonl").write_bytes(good + b"\n" + odd + b"\n" + good)  # and a last line without its end
    assert metrics.read_metrics(tmp_path) == [{"step": 1, "loss": 0.5}] * 2
    metrics.forget(tmp_path, 1)
    assert (tmp_path / "metrics.jsonl").read_bytes() == (good + b"\n") * 2


def test_curves_that_need_no_change_are_not_written_again(tmp_path):
    metrics.append(tmp_path, {"step": 1, "loss": 0.5})
    before = (tmp_path / "metrics.jsonl").stat().st_ino
    metrics.forget(tmp_path, 1)
    assert (tmp_path / "metrics.jsonl").stat().st_ino == before


def test_a_folder_of_another_name_is_no_checkpoint(tmp_path):
    for name in ("step-00000003", "step-00000010.bak", "step-x", "damaged-step-00000004"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    (tmp_path / "checkpoints" / "step-00000005").write_text("a file")
    assert disk.steps_in(tmp_path) == [3]


@pytest.fixture
def three(tmp_path):
    """A run with the checkpoints 1, 2 and 3, the best of which is 2."""
    asked = settings()
    state = begin(network(asked), asked)
    steps(state, asked, 0, 1)
    for step in (1, 2, 3):
        save(tmp_path, state, Point(step=step, best_step=min(step, 2), best=1.0), keep=3)
    return tmp_path


def flip(path):
    """Flip a bit in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


FILES = ("config.json", "model.safetensors", "unmask.json", "training.safetensors", "training.json")


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", [flip, lambda path: path.unlink(), lambda path: path.write_bytes(b"")])
def test_a_damaged_last_checkpoint_is_set_aside_and_the_one_before_it_taken(three, name, damage):
    assert {path.name for path in disk.folder_of(three, 3).iterdir()} == set(FILES)
    damage(disk.folder_of(three, 3) / name)
    said = []
    assert disk.recover(three, said.append, keep=2) == Point(step=2, best_step=2, best=1.0)
    assert len(said) == 1
    assert f"step-00000003 cannot be resumed: {name}" in said[0]
    assert "Going on from step 2; it was renamed damaged-step-00000003" in said[0]
    assert disk.steps_in(three) == [1, 2]
    assert (three / "last").resolve() == disk.folder_of(three, 2)
    assert (three / "best").resolve() == disk.folder_of(three, 2)
    said.clear()
    assert disk.recover(three, said.append, keep=2).step == 2
    assert said == []


@pytest.mark.parametrize(
    "note", ['{"format": 1}', '{"format": 1, "step": 2}', "[1]", "[" * 100_000, '{"format": 1, "step": "3"}']
)
def test_a_note_that_does_not_belong_there_is_damage(three, note):
    (disk.folder_of(three, 3) / "training.json").write_text(note)
    assert disk.recover(three, lambda said: None, keep=2).step == 2


def test_if_no_checkpoint_is_whole_nothing_is_touched_and_the_advice_works(three):
    for step in (1, 2, 3):
        flip(disk.folder_of(three, step) / "training.safetensors")
    with pytest.raises(UserError, match=r"No checkpoint in .*checkpoints is whole.*remove that folder"):
        disk.recover(three, print, keep=2)
    assert disk.steps_in(three) == [1, 2, 3]
    shutil.rmtree(three / "checkpoints")
    assert disk.recover(three, print, keep=2) == Point()


def test_links_and_checkpoints_left_behind_by_a_kill_are_brought_in_line(three):
    (three / "last").unlink()
    disk.point_to(three / "best", disk.folder_of(three, 1))
    disk.recover(three, print, keep=1)
    assert (three / "last").resolve() == disk.folder_of(three, 3)
    assert (three / "best").resolve() == disk.folder_of(three, 2)
    assert disk.steps_in(three) == [2, 3]


def test_a_link_to_a_checkpoint_that_is_gone_is_removed(three):
    shutil.rmtree(disk.folder_of(three, 2))
    disk.recover(three, print, keep=2)
    assert not (three / "best").is_symlink()


def test_a_checkpoint_of_another_version_is_refused_and_not_set_aside(three):
    path = disk.folder_of(three, 3) / "training.json"
    path.write_text('{"format": 99}')
    with pytest.raises(UserError, match="another version of unmask"):
        disk.recover(three, print, keep=2)
    assert disk.steps_in(three) == [1, 2, 3]


def test_a_damaged_checkpoint_is_refused(tmp_path):
    asked = settings()
    state = begin(network(asked), asked)
    steps(state, asked, 0, 1)
    folder = save(tmp_path, state, Point(step=1))
    (folder / "training.json").write_text("{")
    with pytest.raises(UserError, match=r"training\.json is missing or damaged"):
        disk.read_point(folder)
    (folder / "training.safetensors").write_bytes(b"short")
    with pytest.raises(UserError, match="cannot be resumed"):
        disk.restore(folder, state)


def test_a_run_stands_for_its_best_checkpoint(tmp_path):
    asked = settings()
    state = begin(network(asked), asked)
    save(tmp_path, state, Point(step=1, best_step=1))
    assert checkpoint.in_run(tmp_path) == tmp_path / "best"
    assert checkpoint.in_run(tmp_path / "model") == tmp_path / "model"
