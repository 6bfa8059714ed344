"""The complete runs in configs/: each reads, and the smallest one learns as it did when its curve was stored."""

import json
import tomllib
from pathlib import Path
from random import Random

import pytest

from unmask import settings as toml
from unmask.cli.main import main
from unmask.model import cost
from unmask.training import metrics
from unmask.training.phases import phases, spec_of
from unmask.training.settings import Train

CONFIGS = Path(__file__).parents[2] / "configs"
CURVE = Path(__file__).with_name("tiny_curve.json")
WORDS = {
    "who": ["the cat", "a small dog", "my old friend", "the king", "nobody", "a tall tree", "the little girl"],
    "does": ["saw", "liked", "followed", "found", "forgot", "painted", "asked for"],
    "what": ["the moon", "a red ball", "some bread", "the river", "her brother", "an open door", "nothing at all"],
}


def stories(count: int = 3000) -> str:
    """Text that is the same everywhere: simple sentences, a few to a story."""
    dice = Random(0)

    def sentence() -> str:
        return " ".join(dice.choice(WORDS[part]) for part in ("who", "does", "what")).capitalize() + "."

    return "<|endoftext|>".join(" ".join(sentence() for _ in range(dice.randrange(2, 7))) for _ in range(count))


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.toml")), ids=lambda path: path.stem)
def test_every_config_reads_and_its_head_says_command_cost_and_result(path):
    asked = toml.read_toml(path, Train())
    assert tomllib.loads(path.read_text()).keys() <= vars(asked).keys()
    head = path.read_text().split("\n\n")[0]
    assert f"--config configs/{path.name}" in head
    assert "Cost:" in head
    assert "Expected" in head or "Result:" in head


@pytest.mark.parametrize("name, vocab, told", [("owt", 50258, 169_627_218), ("lm1b", 30522, 139_292_986)])
def test_the_paper_s_networks_have_the_paper_s_size(name, vocab, told):
    asked = toml.read_toml(CONFIGS / f"{name}.toml", Train())
    assert cost.parameters(spec_of(asked, phases(asked)[0], vocab=vocab)) == told


@pytest.mark.slow
def test_the_first_steps_of_the_tiny_run_follow_the_stored_curve(tmp_path):
    text, out = tmp_path / "stories.txt", tmp_path / "run"
    text.write_text(stories())
    short = ["--steps", "60", "--run.log-every", "10", "--run.eval-every", "60", "--run.eval-rows", "64"]
    arguments = ["--config", str(CONFIGS / "tiny.toml"), "--data", str(text), "--out", str(out), *short]
    assert main(["train", *arguments]) == 0
    seen = [[line["step"], line["bound"]] for line in metrics.read_metrics(out) if "bound" in line]
    seen += [[line["step"], line["valid"]] for line in metrics.read_metrics(out) if "valid" in line]
    told = json.loads(CURVE.read_text())
    assert [step for step, _ in seen] == [step for step, _ in told]
    assert [bound for _, bound in seen] == pytest.approx([bound for _, bound in told], rel=5e-3)
