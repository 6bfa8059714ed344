"""Adapters in runs: trained, resumed, read, merged; peft reads ours, and ours are read from peft's files."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import unmask
from unmask.cli.main import main
from unmask.errors import UserError
from unmask.model.adapter_files import with_adapter
from unmask.model.checkpoint import save
from unmask.model.passes.whole import logits_at

SIZES = ["--threads", "1", "--optim.batch", "4", "--length", "16", "--run.preview", "0"]
ADAPTER = ["--adapter.rank", "3", "--adapter.alpha", "6", "--adapter.dropout", "0.2", "--optim.lr", "0.01"]


def run(*line: object) -> int:
    return main([str(one) for one in line])


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A base, and an adapter over it that was trained without a pause."""
    folder = tmp_path_factory.mktemp("adapters")
    (folder / "a.txt").write_text("the cat sat on the mat. a dog ran off.\n" * 40)
    (folder / "b.txt").write_text("zebras like blue tea and more tea.\n" * 40)
    small = ["--model.width", "16", "--model.blocks", "2", "--model.heads", "2", "--tokenizer", "byte"]
    assert run("train", "--data", folder / "a.txt", "--out", folder / "base", "--steps", 8, *small, *SIZES) == 0
    assert train(folder, folder / "whole", steps=8) == 0
    return folder


def train(home, out, *more, steps, init=None):
    line = ["train", "--data", home / "b.txt", "--out", out, "--init", init or home / "base", "--steps", steps]
    return run(*line, "--run.save-every", 3, *ADAPTER, *SIZES, *more)


def logits(model_or_network, ids):
    network = getattr(model_or_network, "network", model_or_network)
    with torch.no_grad():
        return logits_at(network, ids, None, torch.arange(ids.numel()))


IDS = torch.arange(32).view(2, 16) + 90


def test_a_resumed_adapter_equals_one_without_a_pause(home, tmp_path):
    out = tmp_path / "paused"
    steps = unmask.train(
        home / "b.txt",
        out,
        steps=8,
        init=str(home / "base"),
        quiet=True,
        text={"length": 16},
        optim={"batch": 4, "lr": 0.01},
        adapter={"rank": 3, "alpha": 6.0, "dropout": 0.2},
        run={"save_every": 3, "threads": 1, "preview": 0},
    )
    for progress in steps:
        if progress.step == 5:
            steps.close()
    (out / "checkpoints/step-00000005").rename(tmp_path / "killed")  # as if it had been killed after step 3
    assert run("train", "--out", out, "--resume") == 0
    for name in ("adapter_model.safetensors", "training.safetensors", "adapter_config.json"):
        assert (out / "last" / name).read_bytes() == (home / "whole/last" / name).read_bytes(), name


def test_the_base_is_not_in_the_files_of_a_run(home):
    folder = home / "whole/last"
    names = {path.name for path in folder.iterdir()}
    assert "model.safetensors" not in names
    assert {name.split(".")[0] for name in load_file(folder / "training.safetensors")} == {
        "weight",
        "exp_avg",
        "exp_avg_sq",
        "step",
    }
    assert all("adapter" in name for name in load_file(folder / "training.safetensors"))


def test_merged_equals_kept_apart_and_differs_from_the_base(home, tmp_path):
    base = unmask.load(home / "base")
    folder = (home / "whole/last").resolve()
    merged, apart = unmask.load(folder), with_adapter(base, folder, apart=True)
    torch.testing.assert_close(logits(merged, IDS), logits(apart, IDS), rtol=1e-6, atol=1e-6)
    assert (logits(merged, IDS) - logits(base, IDS)).abs().max() > 1e-3
    shared = {p.data_ptr() for p in base.network.parameters()}
    assert all(p.data_ptr() in shared for p in apart.network.parameters()), "the base is there once"
    assert run("convert", folder, tmp_path / "one") == 0
    assert torch.equal(logits(unmask.load(tmp_path / "one"), IDS), logits(merged, IDS))
    assert merged.spec.length == 16
    assert merged.settings["adapter"]["rank"] == 3


def test_peft_reads_ours_and_ours_is_read_from_peft(home, tmp_path):
    hf = pytest.importorskip("unmask.hf")
    peft = pytest.importorskip("peft")
    base = unmask.load(home / "base")
    folder = (home / "whole/last").resolve()
    theirs = peft.PeftModel.from_pretrained(hf.UnmaskForMaskedLM.from_pretrained(hf_base(home, tmp_path)), folder)
    with torch.no_grad():
        seen = theirs.eval()(input_ids=IDS).logits.flatten(0, 1)
    torch.testing.assert_close(seen, logits(unmask.load(folder), IDS), rtol=1e-5, atol=1e-5)

    config = peft.LoraConfig(r=2, lora_alpha=5, target_modules=["attn_qkv", "mlp.2"], use_rslora=True)
    made = peft.get_peft_model(hf.UnmaskForMaskedLM.from_pretrained(hf_base(home, tmp_path)), config)
    for name, parameter in made.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.2)
    made.save_pretrained(tmp_path / "theirs")
    with torch.no_grad():
        seen = made.eval()(input_ids=IDS).logits.flatten(0, 1)
    read = with_adapter(base, tmp_path / "theirs")
    torch.testing.assert_close(logits(read, IDS), seen, rtol=1e-5, atol=1e-5)


def hf_base(home, tmp_path) -> Path:
    """The base as transformers wants it."""
    return (home / "base/best").resolve()


@pytest.fixture
def copy(home, tmp_path):
    """A copy of the adapter, to be damaged."""
    folder = tmp_path / "copy"
    shutil.copytree(home / "whole/last", folder)
    return folder


def changed(folder, **values):
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"r": 0}, "r must be a rank from 1 to 4096, not 0."),
        ({"r": 10**12}, "r must be a rank from 1 to 4096, not 1000000000000."),
        ({"r": 4}, "has shape [3, 16], not [4, 16]"),
        ({"lora_alpha": "many"}, "lora_alpha and lora_dropout must be numbers"),
        ({"peft_type": "IA3"}, "peft_type is 'IA3'; unmask reads adapters with 'LORA' only."),
        ({"use_dora": True}, "use_dora is True"),
        ({"base_model_name_or_path": None}, "does not name the base of the adapter"),
        ({"base_model_name_or_path": "nowhere/at/all"}, "there is no folder nowhere/at/all"),
    ],
)
def test_configs_that_do_not_fit_are_refused(copy, values, words):
    changed(copy, **values)
    with pytest.raises(UserError) as error:
        unmask.load(copy)
    assert words in str(error.value)


def test_another_base_and_changed_tensors_are_refused(home, copy, tmp_path):
    other = unmask.load(home / "base", trainable=True)
    with torch.no_grad():
        next(other.network.parameters()).add_(1.0)
    path = save(tmp_path / "other", other.network, mask=other.mask, tokenizer=other.tokenizer)
    with pytest.raises(UserError, match="is not the base of the adapter"):
        with_adapter(unmask.load(path), copy)
    tensors = load_file(copy / "adapter_model.safetensors")
    name = next(iter(tensors))
    save_file(tensors | {name: tensors[name] + 1}, copy / "adapter_model.safetensors")
    with pytest.raises(UserError, match="is not the file that was saved"):
        unmask.load(copy)
    (copy / "unmask.json").unlink()
    save_file(
        {name.replace("attn_qkv", "attn_q"): t for name, t in tensors.items()}, copy / "adapter_model.safetensors"
    )
    with pytest.raises(UserError, match="has no such linear layer"):
        unmask.load(copy)
    save_file({name: tensors[name]}, copy / "adapter_model.safetensors")
    with pytest.raises(UserError, match="of A and B"):
        unmask.load(copy)


def huge() -> bytes:
    """A file of safetensors whose only tensor would take 8 TB."""
    name = "base_model.model.backbone.blocks.0.attn_qkv.lora_A.weight"
    header = json.dumps({name: {"dtype": "F32", "shape": [3, 10**12], "data_offsets": [0, 12 * 10**12]}}).encode()
    return len(header).to_bytes(8, "little") + header


@pytest.mark.parametrize("content", [b"no tensors", b"", huge()])
def test_files_that_are_not_what_they_say_are_refused(copy, content):
    (copy / "unmask.json").unlink()
    (copy / "adapter_model.safetensors").write_bytes(content)
    with pytest.raises(UserError, match="missing, truncated or damaged"):
        unmask.load(copy)


def test_a_base_that_changed_is_not_gone_on_with(home, tmp_path):
    shutil.copytree(home / "base/best", tmp_path / "base")
    assert train(home, tmp_path / "run", steps=2, init=tmp_path / "base") == 0
    shutil.rmtree(tmp_path / "base")
    assert run("convert", home / "whole", tmp_path / "base") == 0
    assert run("train", "--out", tmp_path / "run", "--resume", "--steps", 4) == 2


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--init", "", "--adapter.rank", "2"], "give its base with --init"),
        (["--adapter.rank", "0", "--adapter.alpha", "3"], "an adapter needs a rank of at least 1"),
        (["--adapter.targets", "attn_kqv"], "Did you mean 'attn_qkv'?"),
        (["--adapter.rank", "400"], "is more than the layer"),
        (["--run.compile"], "without --run.compile"),
    ],
)
def test_adapters_that_cannot_be_trained_are_refused(home, tmp_path, capsys, more, words):
    assert train(home, tmp_path / "run", *more, steps=2) == 2
    assert words in capsys.readouterr().err


def test_an_adapter_over_an_adapter_needs_a_merged_base(home, tmp_path, capsys):
    assert train(home, tmp_path / "run", steps=2, init=home / "whole") == 2
    assert "unmask convert" in capsys.readouterr().err
