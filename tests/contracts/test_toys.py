"""A toy objective, backbone and sampler, each registered from one file, work everywhere without another change."""

import json

import httpx
import pytest
import torch

import toys.backbone
import toys.layout
import toys.objective
import toys.recurrent
import toys.sampler
from forked import ranks
from serving.servers import serving
from unmask.cli.main import main
from unmask.diffusion.objective import OBJECTIVES
from unmask.model.checkpoint import load
from unmask.model.denoiser import Denoiser
from unmask.training import metrics, noise

TEXT = "a cab had a bad bead. a fed hag hid. " * 80
SHORT = ["--text.tokenizer", "character", "--text.length", "16", "--optim.batch", "4", "--run.preview", "1"]
SMALL = ["--model.width", "16", "--model.blocks", "1", "--model.heads", "2"]
SIZE = {"transformer": SMALL, "transformer-xl": [*SMALL, "--model.memory", "20"]}
PAIRS = [
    ("toy-objective", "transformer"),
    ("mdlm", "toy-backbone"),
    ("ar", "toy-backbone"),
    ("ar", "toy-recurrent"),
    ("d3pm", "toy-backbone"),
]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(TEXT)
    return str(path)


def arguments(text, out, objective, backbone, steps=4):
    chosen = ["--objective.name", objective, "--model.name", backbone, *SIZE.get(backbone, ["--model.width", "16"])]
    return ["train", "--data", text, "--out", str(out), "--steps", str(steps), *chosen, *SHORT]


@pytest.mark.slow
@pytest.mark.parametrize(("objective", "backbone"), PAIRS)
def test_a_member_of_one_file_trains_bounds_samples_infills_and_serves(text, tmp_path, capsys, objective, backbone):
    out = tmp_path / "run"
    assert main(arguments(text, out, objective, backbone)) == 0
    model = load(out)
    assert (model.objective.name, model.spec.name) == (objective, backbone)
    capsys.readouterr()
    assert main(["evaluate", str(out), text, "--passes", "2", "--rows", "4", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["nats_per_token"] > 0
    assert answer["exact"] == model.objective.facts.exact
    steps = ["--steps", "20"] if objective == "d3pm" else []  # of 1,000
    assert main(["sample", str(out), "--prompt", "a ", "--length", "9", "--json", *steps]) == 0
    drawn = json.loads(capsys.readouterr().out)
    assert drawn["sampler"] == model.objective.facts.sampler
    if model.objective.facts.infills:
        assert main(["infill", str(out), "a [2] had", "--passes", "2", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["text"].startswith("a ")
    with serving(model) as address:
        body = {"prompt": "a ", "max_tokens": 6, "seed": 0} | ({"steps": 20} if steps else {})
        answer = httpx.post(f"{address}/v1/completions", json=body, timeout=120).json()
        assert answer["choices"][0]["text"]
        assert answer["law"] == drawn["law"]
        score = httpx.post(f"{address}/v1/score", json={"texts": ["a cab"], "passes": 2}, timeout=120).json()
        assert score["data"][0]["nats"] > 0


@pytest.mark.slow
def test_a_layout_of_one_file_trains_is_stored_evaluated_and_drawn(text, tmp_path, capsys):
    out = tmp_path / "run"
    assert main([*arguments(text, out, "mdlm", "transformer"), "--text.pack", "toy-layout"]) == 0
    model = load(out)
    assert isinstance(model.layout, toys.layout.ToyLayout)
    capsys.readouterr()
    assert main(["evaluate", str(out), text, "--passes", "2", "--rows", "4", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["record"]["settings"]["pack"] == "toy-layout"
    assert answer["tokens"] == 4 * 15
    assert main(["sample", str(out), "--prompt", "a ", "--length", "9", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tokens"][0] == model.tokenizer.eos


@pytest.mark.slow
def test_a_sampler_of_one_file_is_a_flag_a_request_and_an_argument(text, tmp_path, capsys):
    out = tmp_path / "run"
    assert main(arguments(text, out, "mdlm", "transformer", steps=2)) == 0
    capsys.readouterr()
    flags = ["--sampler", "toy-sampler:first=1", "--steps", "3", "--length", "12", "--seed", "5", "--document", "no"]
    assert main(["sample", str(out), *flags, "--json"]) == 0
    drawn = json.loads(capsys.readouterr().out)
    assert drawn["law"] == "approximate (every second token first, 3 calls)"
    assert drawn["calls"] == 3
    assert main(["infill", str(out), "a [4] b", "--sampler", "toy-sampler", "--passes", "2", "--json"]) == 0
    with serving(load(out)) as address:
        named = httpx.get(f"{address}/v1/models", timeout=120).json()["data"][0]["samplers"]
        (one,) = [sampler for sampler in named if sampler["name"] == "toy-sampler"]
        assert [field["name"] for field in one["fields"]] == ["calls", "first"]
        assert one["takes_steps"]
        blank = {"tokens": [None] * 12, "sampler": "toy-sampler:first=1", "steps": 3, "seed": 5}
        answer = httpx.post(f"{address}/v1/infill", json=blank, timeout=120).json()
        assert [token["id"] for token in answer["choices"][0]["tokens"]] == drawn["tokens"]


@pytest.mark.slow
@pytest.mark.parametrize(("objective", "backbone"), [("toy-objective", "toy-backbone"), ("ar", "toy-recurrent")])
def test_learned_parts_state_and_carried_memory_resume_bit_for_bit(text, tmp_path, objective, backbone):
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    often = ["--run.save-every", "3"]
    assert main([*arguments(text, whole, objective, backbone, steps=6), *often]) == 0
    assert main([*arguments(text, halves, objective, backbone, steps=3), *often]) == 0
    assert main([*arguments(text, halves, objective, backbone, steps=6), *often, "--resume"]) == 0
    one, other = (load(folder / "last") for folder in (whole, halves))
    for a, b in zip(one.network.parameters(), other.network.parameters(), strict=True):
        assert torch.equal(a, b)
    for name, part in one.parts.items():
        assert all(torch.equal(a, b) for a, b in zip(part.parameters(), other.parts[name].parameters(), strict=True))
    assert one.state.keys() == other.state.keys()
    assert all(torch.equal(value, other.state[name]) for name, value in one.state.items())
    if objective == "toy-objective":
        assert one.state["steps"].item() == 6
        assert one.parts["weight"].log.item() != 0


def test_a_carried_memory_reaches_the_next_step():
    torch.manual_seed(0)
    spec = toys.recurrent.RecurrentSpec(vocab=9, length=8)
    denoiser = Denoiser(toys.recurrent.Recurrent(spec), OBJECTIVES.usual("ar"))
    rows = torch.randint(8, (2, 15), generator=torch.Generator().manual_seed(0))
    drawn = noise.draw(2, 8, seed=0, step=0)
    with torch.no_grad():
        first, memory = denoiser(rows[:, :8], drawn, mask=8)
        second, _ = denoiser(rows[:, 7:], drawn, mask=8, memory=memory)  # begins with the last token of the first
        without, _ = denoiser(rows[:, 7:], drawn, mask=8)
        whole, _ = denoiser(rows, noise.draw(2, 15, seed=0, step=0), mask=8)
    torch.testing.assert_close(first.bound[:, 1:], whole.bound[:, 1:8])
    torch.testing.assert_close(second.bound[:, 1:], whole.bound[:, 8:])
    assert not torch.allclose(without.bound, second.bound)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("objective", "backbone", "way"),
    [("toy-objective", "toy-backbone", "fsdp"), ("ar", "toy-recurrent", "ddp"), ("ar", "transformer-xl", "ddp")],
)
def test_two_processes_that_resume_equal_one_that_does_not(text, tmp_path, objective, backbone, way):
    """Learned parts and state with a sharded network, and a memory of rows that two processes share."""
    one, two = tmp_path / "one", tmp_path / "two"
    assert main([*arguments(text, one, objective, backbone, steps=6), "--run.log-every", "1"]) == 0
    often = ["--resume", "--run.parallel", way, "--run.log-every", "1"]
    for steps in (3, 6):
        line = [*arguments(text, two, objective, backbone, steps=steps), *often]
        both = [process.finish() for process in ranks(2, *line, program="toys.train")]
        assert [one.returncode for one in both] == [0, 0], [one.stderr for one in both]
    losses = [[line["loss"] for line in metrics.read_metrics(out) if "loss" in line] for out in (one, two)]
    assert len(losses[0]) == 6
    assert losses[1] == pytest.approx(losses[0], rel=1e-6)
