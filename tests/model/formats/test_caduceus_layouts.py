"""Published Caduceus checkpoints load with or without their tied tensors, and are written back bit for bit."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from model.formats.caduceus_files import published
from unmask.errors import UserError
from unmask.model.backbone import build
from unmask.model.backbones.caduceus import CaduceusSpec
from unmask.model.checkpoint import load
from unmask.model.convert import convert
from unmask.model.formats.caduceus import CaduceusLayout
from unmask.model.passes.whole import hidden_states

NAMES = ["ps_fused", "ps_unfused", "ph", "ph_untied_mult"]


@pytest.mark.parametrize("name", NAMES)
def test_a_published_file_is_written_back_bit_for_bit(name, tmp_path):
    source = published(name, tmp_path / "hub")
    model = load(source)
    assert (model.mask, model.objective.name, model.spec.vocab) == (3, "mlm", 16)
    assert model.spec.equivariant == name.startswith("ps")
    assert model.spec.exchange == (name != "ps_unfused")
    convert(source, tmp_path / "ours")
    convert(tmp_path / "ours", tmp_path / "back", to="caduceus")
    before, after = (load_file(folder / "model.safetensors") for folder in (source, tmp_path / "back"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) and before[key].dtype == after[key].dtype for key in before)
    again = load(tmp_path / "back")
    assert again.spec.complement == model.spec.complement
    x = torch.arange(16).view(2, 8)
    with torch.no_grad():
        one, other = (m.network.head(hidden_states(m.network, x)) for m in (model, again))
    assert torch.equal(one, other)


@pytest.mark.parametrize("name", NAMES)
def test_files_with_every_tied_tensor_are_the_same_network(name, tmp_path):
    one, other = load(published(name, tmp_path / "a")), load(published(name, tmp_path / "b", tied=True))
    for a, b in zip(one.network.parameters(), other.network.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"rms_norm": False}, "rms_norm = False"),
        ({"bidirectional": False}, "bidirectional = False"),
        ({"bidirectional_strategy": "concat"}, "bidirectional_strategy = 'concat'"),
        ({"complement_map": {"7": 10, "10": 8}}, "not its own inverse"),
        ({"complement_map": {"7": 99}}, "not ids below 16"),
        ({"complement_map": None}, "must be a table of ids"),
        ({"vocab_size": 9, "complement_map": {}}, "add the id of the tokenizer's mask"),
        ({"bidirectional_weight_tie": False}, "mamba_rev.in_proj.weight .* is missing"),
    ],
)
def test_another_network_is_refused_by_name(keys, told, tmp_path):
    with pytest.raises(UserError, match=told):
        load(published("ps_fused", tmp_path / "hub", **keys))


def test_a_network_of_the_published_size_fills_a_file_of_the_published_size(tmp_path):
    spec, layout = CaduceusSpec(vocab=16, width=256, blocks=4), CaduceusLayout()
    tensors = {layout.written(f"backbone.{name}", spec): w for name, w in build(spec).state_dict().items()}
    assert len(tensors) == 70
    save_file(tensors, tmp_path / "ph.safetensors", metadata={"format": "pt"})
    assert (tmp_path / "ph.safetensors").stat().st_size == 7_746_792
