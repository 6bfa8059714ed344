"""The formulas of a plan against small runs that were measured."""

import math

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from unmask.cli.main import main
from unmask.errors import UserError
from unmask.model import cost
from unmask.model.backbone import build
from unmask.model.checkpoint import load
from unmask.model.denoiser import Denoiser
from unmask.settings import merge_settings
from unmask.text.corpus.shards import token_type
from unmask.text.row import Rows
from unmask.training import machines
from unmask.training.loop import begin, train
from unmask.training.phases import phases, spec_of
from unmask.training.settings import Text, Train, settle_training

VOCAB = 60


@pytest.fixture(scope="module")
def settings():
    tiny = {"width": 32, "blocks": 2, "heads": 2}
    optim = {"name": "adamw", "batch": 8, "ema": 0.9}
    return settle_training(merge_settings(Train(), {"steps": 3, "recipe": "plain", "model": tiny, "optim": optim}))


def spec(settings):
    return spec_of(settings, phases(settings)[-1], vocab=VOCAB)


def test_the_state_of_a_run_has_the_bytes_of_the_formula(settings):
    state = begin(Denoiser(build(spec(settings)), phases(settings)[-1].objective), settings)
    weights = list(state.learner.parameters())
    for weight in weights:
        weight.grad = torch.zeros_like(weight)
    state.optimizer.step()
    tensors = [*weights, *(w.grad for w in weights)]
    tensors += [m for held in state.optimizer.state.values() for m in held.values() if m.ndim]
    tensors += state.shadow
    held = sum(t.numel() * t.element_size() for t in tensors)
    assert held == pytest.approx(machines.state_bytes(cost.parameters(spec(settings)), ema=True), rel=0.01)


@pytest.mark.parametrize(("width", "blocks", "length", "batch"), [(64, 4, 64, 8), (128, 2, 32, 8), (64, 8, 128, 4)])
def test_what_a_step_keeps_for_its_backward_pass_has_about_the_bytes_of_the_formula(width, blocks, length, batch):
    shape = {"width": width, "blocks": blocks, "heads": 2}
    optim = {"name": "adamw", "batch": batch}
    asked = {"steps": 1, "recipe": "plain", "model": shape, "text": {"length": length}, "optim": optim}
    settings = settle_training(merge_settings(Train(), asked))
    phase, network = phases(settings)[-1], build(spec(settings))
    denoiser = Denoiser(network, phase.objective)
    own = {tensor.untyped_storage().data_ptr() for tensor in [*denoiser.parameters(), *denoiser.buffers()]}
    kept = []  # as long as a tensor is here, no other has its memory

    def keep(tensor):
        kept.append(tensor)
        return tensor

    ids = torch.randint(VOCAB - 1, (batch, length), generator=torch.Generator().manual_seed(0))
    rows = Rows.of(ids, torch.ones(batch, length, dtype=torch.bool))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        next(train(begin(denoiser, settings), phase, settings, lambda step: rows, mask=VOCAB - 1))
    storages = {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in kept}
    measured = sum(size for address, size in storages.items() if address not in own)
    whole = cost.training_bytes(network.spec, batch=batch, rows=phase.objective.facts.asked, ema=False)
    state = machines.state_bytes(cost.parameters(network.spec), ema=False)
    assert measured == pytest.approx(whole - state, rel=0.2)


def test_a_token_of_the_shards_has_the_bytes_of_the_formula(settings):
    for vocab, device in ((60, "H100"), (100_000, "A100")):
        plan = machines.plan_run(settings, 1, machines.DEVICES[device], vocab=vocab)
        said = next(
            line for line in machines.plan_lines(plan, machines.DEVICES[device], vocab=vocab) if "input" in line
        )
        speed = plan.per_step / max(plan.computing, plan.sending[plan.way])
        assert float(said.split()[1]) == pytest.approx(speed * token_type(vocab).itemsize / 1e6, rel=0.01)


def test_a_checkpoint_on_disk_has_the_bytes_of_the_formula(tmp_path):
    (tmp_path / "text.txt").write_text("the cat sat on the mat\n" * 200)
    words = ["--model.width", "64", "--model.blocks", "2", "--model.heads", "2", "--optim.name", "adamw"]
    words += ["--text.length", "16", "--optim.batch", "4", "--steps", "2", "--recipe", "plain", "--run.preview", "0"]
    command = ["train", "--data", str(tmp_path / "text.txt"), "--out", str(tmp_path / "run"), "--tokenizer", "byte"]
    assert main([*command, *words]) == 0
    folder = tmp_path / "run" / "last"
    stored = sum(path.stat().st_size for path in folder.iterdir() if path.suffix == ".safetensors")
    parameters = sum(p.numel() for p in load(folder).network.parameters())
    assert stored == pytest.approx(machines.checkpoint_bytes(parameters), rel=0.05)


def test_ddp_reduces_as_many_bytes_as_there_are_gradients(settings, tmp_path):
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    try:
        network = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 8))
        wrapped = DistributedDataParallel(network)
        sent = []

        def counted(state, bucket):
            sent.append(bucket.buffer().numel() * bucket.buffer().element_size())
            future = torch.futures.Future()
            future.set_result(bucket.buffer())
            return future

        wrapped.register_comm_hook(None, counted)
        wrapped(torch.randn(4, 64)).sum().backward()
    finally:
        dist.destroy_process_group()
    parameters = sum(p.numel() for p in network.parameters())
    assert sum(sent) == cost.FLOAT * parameters
    # A ring of n passes each byte on 2(n−1)/n times: with two devices once.
    assert machines.traffic_bytes(parameters, 2, "ddp") == sum(sent)
    assert machines.traffic_bytes(parameters, 1, "ddp") == 0
    assert machines.traffic_bytes(parameters, 4, "fsdp", passes=2) == 3 * 2 * sum(sent) * 3 / 4


def test_saving_at_the_planned_interval_loses_the_least(settings):
    a = machines.plan_run(settings, 8, machines.DEVICES["H100"], vocab=VOCAB)
    between, writing = machines.BETWEEN_FAILURES / 8, a.checkpoint / machines.DISK

    def lost(every):  # share of the time: writing, and half an interval per failure
        return writing / every + every / 2 / between

    assert all(lost(a.save_every) < lost(a.save_every * factor) for factor in (0.5, 0.9, 1.1, 2))
    assert a.failures == pytest.approx(a.seconds / between)


def test_a_sharded_state_takes_its_share_and_the_rest_stays(settings):
    one, eight = (machines.plan_run(settings, n, machines.DEVICES["A100"], vocab=VOCAB) for n in (1, 8))
    state = machines.state_bytes(one.parameters, ema=True)
    assert eight.memory["ddp"] - eight.memory["fsdp"] == pytest.approx(state * 7 / 8)
    assert math.isclose(one.memory["ddp"], one.memory["fsdp"])


def test_the_paper_s_run_is_planned_from_the_command_line(capsys):
    assert main(["train", "--config", "configs/owt.toml", "--plan", "64xH100"]) == 0
    told = capsys.readouterr().out
    assert "5.24e+11 tokens in steps of 524,288" in told
    assert "memory, ddp" in told
    assert "does not fit" not in told


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--plan", "H100"], "such as 64xH100; saw 'H100'"),
        (["--plan", "8xH10"], "no device is called 'H10'"),
        (["--plan", "0xH100"], "such as 64xH100"),
        (["--plan", "7xH100", "--optim.batch", "32"], "give a multiple of 7"),
        (["--plan", "8xH100", "--tokenizer", "hf:someone/else"], "Give --vocab N"),
    ],
)
def test_mistakes(capsys, words, told):
    assert main(["train", *words]) == 2
    assert told in capsys.readouterr().err


def test_known_tokenizers_need_no_size():
    assert machines.vocabulary_size(Text(tokenizer="hf:gpt2")) == 50258
    with pytest.raises(UserError, match="how many ids"):
        machines.vocabulary_size(Text(tokenizer="character"))
