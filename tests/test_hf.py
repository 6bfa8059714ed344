"""Our networks in transformers and peft themselves: Auto classes, pipeline, Trainer, adapters, streamer."""

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import tiny as letters
from model.golden import FOLDER, arrays_of, distance, recorded
from model.test_checkpoint import official
from unmask.errors import UserError
from unmask.model.checkpoint import load, shipped_models
from unmask.model.passes.whole import hidden_states

transformers = pytest.importorskip("transformers")
hf = pytest.importorskip("unmask.hf")
STORIES = shipped_models()["stories"]


@pytest.fixture
def stories():
    return transformers.AutoModelForMaskedLM.from_pretrained(STORIES).eval()


@pytest.fixture
def tokenizer():
    return transformers.AutoTokenizer.from_pretrained(STORIES)


def rows(mask, vocab=500):
    x = torch.randint(vocab, (2, 16), generator=torch.Generator().manual_seed(0))
    x[:, 3:7] = mask
    return x


def ours(folder, x):
    network = load(folder).network
    with torch.no_grad():
        return network.head(hidden_states(network, x, torch.zeros(len(x)))), hidden_states(network, x, torch.zeros(2))


@torch.no_grad()
def test_auto_classes_give_our_networks_and_our_numbers(stories):
    x = rows(stories.mask)
    logits, hidden = ours(STORIES, x)
    torch.testing.assert_close(stories(x).logits, logits, rtol=0, atol=3e-5)
    trunk = transformers.AutoModel.from_pretrained(STORIES).eval()
    torch.testing.assert_close(trunk(x).last_hidden_state, hidden, rtol=0, atol=3e-5)
    assert stories.get_input_embeddings() is stories.backbone.vocab_embed
    padded = torch.cat((x, torch.ones(2, 3, dtype=torch.long)), 1)
    real = (torch.arange(19) < 16).long().expand(2, -1)
    torch.testing.assert_close(stories(padded, attention_mask=real).logits[:, :16], logits, rtol=0, atol=3e-5)
    with pytest.raises(UserError, match="padded at their end"):
        stories(padded, attention_mask=real.flip(1))


@torch.no_grad()
def test_a_published_mdlm_runs_our_class_and_none_of_its_code(tmp_path):
    folder = official(tmp_path / "hub", "dit_mid")
    path = folder / "config.json"
    evil = {"AutoConfig": "evil.Config", "AutoModelForMaskedLM": "evil.MDLM"}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"auto_map": evil}))
    (folder / "evil.py").write_text("raise SystemExit('code of the repository was run')\n")
    model = transformers.AutoModelForMaskedLM.from_pretrained(folder, trust_remote_code=True).eval()
    assert isinstance(model, hf.UnmaskForMaskedLM)
    x = torch.as_tensor(np.asarray(recorded("dit_mid")["xt"]))
    torch.testing.assert_close(model(x).logits, ours(folder, x)[0], rtol=0, atol=3e-5)
    assert model(x, timesteps=torch.zeros(len(x)), return_dict=False)[0].shape == model(x).logits.shape


@torch.no_grad()
def test_a_published_block_model_runs_our_class_and_has_the_recorded_logits(tmp_path):
    folder, cases = tmp_path / "hub", arrays_of(FOLDER / "block" / "block_tiny_cases.npz")
    folder.mkdir()
    shutil.copyfile(FOLDER / "block" / "block_tiny.safetensors", folder / "model.safetensors")
    config = json.loads((FOLDER / "block" / "block_tiny.config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"auto_map": {"AutoModelForMaskedLM": "evil.BD3LM"}}))
    (folder / "evil.py").write_text("raise SystemExit('code of the repository was run')\n")
    model = transformers.AutoModelForMaskedLM.from_pretrained(folder, trust_remote_code=True).eval()
    assert isinstance(model, hf.UnmaskForMaskedLM)
    noisy, clean = cases["bs4_xt"].long(), cases["x0"].long()
    both = model(torch.cat((noisy, clean), 1)).logits
    assert distance(both, cases["bs4_logits"]) < 5e-5
    row = torch.cat((clean[:, :8], noisy[:, 8:12]), 1)  # a block after finished text
    assert distance(model(row).logits[:, 8:], cases["bs4_logits"][:, 8:12]) < 5e-5


@torch.no_grad()
def test_what_is_saved_is_loaded_by_both(stories, tmp_path):
    stories.save_pretrained(tmp_path / "again")
    x = rows(stories.mask)
    again = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "again").eval()
    assert torch.equal(again(x).logits, stories(x).logits)


@torch.no_grad()
def test_a_file_without_its_constants_is_complete(stories, tmp_path):
    folder = shutil.copytree(STORIES, tmp_path / "without")
    tensors = load_file(folder / "model.safetensors")
    tensors.pop("backbone.rotary_emb.inv_freq")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    again = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    stories.backbone.rotary_emb.reset_constants()  # those of the file are rounded to float16
    x = rows(stories.mask)
    torch.testing.assert_close(again(x).logits, stories(x).logits, rtol=0, atol=3e-5)


def test_fill_mask_fills_the_mask(stories, tokenizer):
    fill = transformers.pipeline("fill-mask", model=stories, tokenizer=tokenizer)
    found = fill(f"Once upon a{tokenizer.mask_token}, there was a little girl named Lily.")
    assert found[0]["token_str"].strip() == "time"
    assert found[0]["score"] > 0.5


def test_generate_shows_every_step_to_a_streamer(stories, tokenizer, capsys):
    prompt = torch.tensor([tokenizer("Once upon a time", add_special_tokens=False).input_ids])
    drafts = []

    class Watcher(transformers.TextDiffusionStreamer):
        def put_draft(self, value, **options):
            drafts.append(value.clone())
            super().put_draft(value, **options)

    found = stories.generate(prompt, max_new_tokens=6, streamer=Watcher(tokenizer)).sequences
    assert found.shape == (1, prompt.shape[1] + 6)
    assert len(drafts) == 6
    assert torch.equal(drafts[-1], found[:, prompt.shape[1] :])
    assert not (found == stories.mask).any()
    assert (drafts[0] == stories.mask).sum() == 5
    lasting = capsys.readouterr().out.split("\x1b8\x1b[J")[-1]  # what is left on the screen after the drafts
    assert lasting.strip().endswith(tokenizer.decode(found[0, prompt.shape[1] + 1 :]).strip())
    again = stories.generate(prompt, max_new_tokens=6)
    assert torch.equal(again.sequences, found)


def test_labels_give_the_cross_entropy_of_masks_or_the_bound_of_clean_rows(stories):
    x = rows(stories.mask)
    labels = torch.full_like(x, -100)
    labels[:, 3:7] = 9
    logits = stories(x).logits[:, 3:7].flatten(0, 1)
    wanted = torch.nn.functional.cross_entropy(logits, torch.full((8,), 9))
    torch.testing.assert_close(stories(x, labels=labels).loss, wanted)
    clean = torch.tensor([load(STORIES).tokenizer.encode("Once upon a time there was a girl.")])
    torch.manual_seed(0)
    losses = torch.stack([stories(clean, labels=clean).loss for _ in range(40)])
    assert 1 < losses.mean() < 5
    given = clean.clone()
    given[:, :-1] = -100
    torch.manual_seed(0)
    last = stories(clean, labels=given).loss  # one free token: its loss is exact
    with torch.no_grad():
        hidden = clean.clone()
        hidden[0, -1] = stories.mask
        exact = -stories(hidden).logits[0, -1].index_fill(0, torch.tensor(stories.mask), -torch.inf).log_softmax(-1)
    torch.testing.assert_close(last * 1.0, exact[clean[0, -1]] * (last / exact[clean[0, -1]]).round())


def test_the_trainer_trains_it(tmp_path):
    pytest.importorskip("accelerate")
    model = transformers.AutoModelForMaskedLM.from_config(hf.UnmaskConfig(**tiny()))
    ids = torch.arange(8).repeat(64, 1)
    data = [{"input_ids": row, "labels": row} for row in ids]
    told = transformers.TrainingArguments(
        output_dir=str(tmp_path), max_steps=40, per_device_train_batch_size=16, learning_rate=1e-2, report_to=[],
        save_strategy="no", logging_steps=10, use_cpu=True,
    )  # fmt: skip
    trainer = transformers.Trainer(model=model, args=told, train_dataset=data)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < 0.8 * losses[0]


def tiny():
    table = {"name": "transformer", "vocab": 9, "length": 8, "width": 16, "blocks": 1, "heads": 2, "cond": 0}
    return {"backbone": table, "vocab_size": 9, "mask_index": 8}


@pytest.mark.parametrize("name", ["transformer", "decoder"])
def test_adapters_of_peft_change_the_logits_and_alone_have_gradients(name):
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    table = {"name": name, "vocab": 9, "length": 8, "width": 16, "blocks": 2, "heads": 2}
    model = hf.UnmaskForMaskedLM(hf.UnmaskConfig(backbone=table, vocab_size=9, mask_index=8)).eval()
    for parameter in model.parameters():
        parameter.data.add_(torch.randn(parameter.shape) * 0.2)
    layers = {
        "transformer": ["attn_qkv", "attn_out", "mlp.0", "mlp.2"],
        "decoder": ["q_proj", "v_proj", "o_proj", "up_proj", "down_proj"],
    }[name]
    x = torch.randint(8, (2, 8), generator=torch.Generator().manual_seed(0))
    before = model(x).logits.detach()
    tuned = peft.get_peft_model(model, peft.LoraConfig(target_modules=layers, r=2, init_lora_weights=False)).eval()
    after = tuned(x).logits.detach()
    assert (after - before).abs().max() > 1e-3
    with tuned.disable_adapter():
        torch.testing.assert_close(tuned(x).logits, before)
    tuned(x, labels=x).loss.backward()
    trained = {key for key, parameter in tuned.named_parameters() if parameter.grad is not None}
    assert trained == {key for key, _ in tuned.named_parameters() if "lora_" in key}
    assert all(any(layer in key for key in trained) for layer in layers)
    torch.testing.assert_close(tuned.merge_and_unload()(x).logits, after, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_trl_trains_our_objective_on_answers_alone(tmp_path):
    """The recipe of docs/how/tune.md: prompts and paddings are given, and accumulated batches count as one."""
    trl, datasets = pytest.importorskip("trl"), pytest.importorskip("datasets")

    class Trainer(trl.SFTTrainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            output = model(**inputs, num_items_in_batch=num_items_in_batch)
            return (output.loss, output) if return_outputs else output.loss

    folder = letters.checkpoint(tmp_path / "base")
    model = transformers.AutoModelForMaskedLM.from_pretrained(folder)
    given = []
    loss = model.loss
    model.loss = lambda ids, labels, *more: given.append((ids, labels)) or loss(ids, labels, *more)
    pairs = [{"prompt": "cab ", "completion": "abba"}, {"prompt": "fed ", "completion": "ab"}] * 16
    told = trl.SFTConfig(
        output_dir=str(tmp_path / "run"), max_steps=30, per_device_train_batch_size=4, gradient_accumulation_steps=2,
        learning_rate=1e-2, report_to=[], use_cpu=True, bf16=False, gradient_checkpointing=False, save_strategy="no",
        logging_steps=10, dataloader_pin_memory=False, max_length=12, disable_tqdm=True,
    )  # fmt: skip
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    trainer = Trainer(
        model=model, args=told, train_dataset=datasets.Dataset.from_list(pairs), processing_class=tokenizer
    )
    trainer.train()
    for ids, labels in given:
        assert bool((labels[:, :4] == -100).all())  # the prompt, one token per letter
        free = labels != -100
        assert torch.equal(ids[free], labels[free])
        assert set(free.sum(1).tolist()) <= {3, 5}  # the answer and its end
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < 0.5 * losses[0]
    assert losses[0] < 8  # nats per token: a sum over two batches would be twice that


@torch.no_grad()
def test_a_checkpoint_keeps_its_objective_or_is_refused(tmp_path):
    folder = letters.checkpoint(tmp_path / "blocks", objective="block")
    model = transformers.AutoModelForMaskedLM.from_pretrained(folder)
    assert model.objective == load(folder).objective
    model.save_pretrained(tmp_path / "again")
    assert transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "again").objective == model.objective
    with pytest.raises(UserError, match="was trained with ar"):
        transformers.AutoModelForMaskedLM.from_pretrained(shipped_models()["stories-ar"])
