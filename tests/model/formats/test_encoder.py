"""Encoders of transformers load as they are, give its logits at every length, and are written back for it to read."""

import json
import logging

import pytest
import tokenizers
import torch
from safetensors.torch import load_file, save_file

from unmask.errors import UserError
from unmask.files import appearing
from unmask.model.answer import Answer
from unmask.model.backbones.bert import alibi_slopes
from unmask.model.checkpoint import load, save
from unmask.model.convert import convert
from unmask.model.passes.whole import hidden_states
from unmask.model.predictor import Predictor, write_predictor
from unmask.model.reading import Reading

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.slow
SIZES = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
LONGEST = 12
MASK = 14


def bert(**keys):
    wide = {"intermediate_size": 24, "max_position_embeddings": LONGEST, **SIZES, **keys}
    return transformers.BertForMaskedLM(transformers.BertConfig(**wide))


def roberta(**keys):
    wide = {"intermediate_size": 24, "max_position_embeddings": LONGEST + 2, "layer_norm_eps": 1e-5, **SIZES, **keys}
    return transformers.RobertaForMaskedLM(transformers.RobertaConfig(type_vocab_size=1, **wide))


def distilbert(**keys):
    narrow = {"vocab_size": 40, "dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24}
    return transformers.DistilBertForMaskedLM(
        transformers.DistilBertConfig(max_position_embeddings=LONGEST, **narrow, **keys)
    )


def albert(**keys):
    wide = {"intermediate_size": 24, "max_position_embeddings": LONGEST, "embedding_size": 8, **SIZES, **keys}
    return transformers.AlbertForMaskedLM(transformers.AlbertConfig(**wide))


def modernbert(**keys):
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
    wide = {"intermediate_size": 24, "local_attention": 6, "max_position_embeddings": 64, **ids, **SIZES, **keys}
    return transformers.ModernBertForMaskedLM(
        transformers.ModernBertConfig(**wide | {"num_hidden_layers": 4, "attn_implementation": "eager"})
    )


def esm(**keys):
    rotary = {"position_embedding_type": "rotary", "emb_layer_norm_before": False, "token_dropout": True}
    wide = {"intermediate_size": 24, "max_position_embeddings": 64, "mask_token_id": MASK, "pad_token_id": 1}
    return transformers.EsmForMaskedLM(transformers.EsmConfig(**rotary, **wide, **SIZES, **keys))


PEERS = {
    "bert": bert,
    "roberta": roberta,
    "distilbert": distilbert,
    "albert": albert,
    "modernbert": modernbert,
    "esm": esm,
}


def made(name, folder, **keys):
    """A peer with weights that are random and not small, saved as transformers saves it; biases are not zero."""
    torch.manual_seed(0)
    peer = PEERS[name](**keys).eval()
    with torch.no_grad():
        for parameter in peer.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.2)
    peer.save_pretrained(folder)
    change(folder, mask_index=MASK)
    return peer, folder


def change(folder, name="config.json", **keys):
    path = folder / name
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))
    return folder


def tokens(rows=3, length=LONGEST, seed=0):
    """Rows with a mask in the middle of the vocabulary, and without padding."""
    x = torch.randint(4, SIZES["vocab_size"], (rows, length), generator=torch.Generator().manual_seed(seed))
    x[:, length // 2 :][:, : length - 1] = MASK  # never all: ESM divides by the share of what is shown
    return x


def logits(network, x, **options):
    with torch.no_grad():
        return network.head(hidden_states(network, x, **options))


def theirs(peer, x, **options):
    with torch.no_grad():
        return peer(x, **options).logits


def close(a, b):
    torch.testing.assert_close(a, b, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", PEERS)
def test_logits_are_those_of_transformers_at_every_length_and_with_padding(name, tmp_path):
    peer, folder = made(name, tmp_path / "hub")
    network = load(folder).network
    for length in range(1, LONGEST + 1):
        x = tokens(length=length, seed=length)
        close(logits(network, x), theirs(peer, x))
    x, lengths = tokens(), torch.tensor([5, LONGEST, 1])
    real = torch.arange(LONGEST) < lengths[:, None]
    x = torch.where(real, x, peer.config.pad_token_id)
    close(logits(network, x, lengths=lengths)[real], theirs(peer, x, attention_mask=real.long())[real])


@pytest.mark.parametrize("name", PEERS)
def test_small_states_are_normed_as_by_transformers(name, tmp_path):
    """The eps of a norm matters where states are small."""
    peer, folder = made(name, tmp_path / "hub")
    for parameter in peer.parameters():
        parameter.data.mul_(0.1)
    peer.save_pretrained(folder)
    x, wanted = tokens(), theirs(peer, tokens())
    close(logits(load(change(folder, mask_index=MASK)).network, x) / wanted.std(), wanted / wanted.std())


@pytest.mark.parametrize("name", [name for name in PEERS if name in ("bert", "albert")])
def test_segments_are_those_of_transformers(name, tmp_path):
    peer, folder = made(name, tmp_path / "hub")
    network, x = load(folder).network, tokens()
    segments = (torch.arange(LONGEST) > 5).long().expand(3, -1)
    pairs = logits(network, x, segments=segments)
    close(pairs, theirs(peer, x, token_type_ids=segments))
    assert not torch.allclose(pairs, logits(network, x), atol=1e-2)


@pytest.mark.parametrize("name", PEERS)
def test_what_is_written_back_is_read_by_transformers(name, tmp_path):
    peer, folder = made(name, tmp_path / "hub")
    convert(folder, tmp_path / "ours")
    convert(tmp_path / "ours", tmp_path / "back", to=name)
    again, told = type(peer).from_pretrained(tmp_path / "back", output_loading_info=True)
    # The head for contacts of ESM, and what follows from its config.
    assert not [key for key in told["missing_keys"] if not ("contact_head" in key or key.endswith("inv_freq"))]
    assert not told["unexpected_keys"]
    assert not told["mismatched_keys"]
    x = tokens()
    close(theirs(again.eval(), x), theirs(peer, x))
    assert load(tmp_path / "back").spec == load(folder).spec == load(tmp_path / "ours").spec


@pytest.mark.parametrize("name", PEERS)
def test_an_encoder_without_a_head_gets_a_new_one_and_says_so(name, tmp_path, caplog):
    peer, folder = made(name, tmp_path / "hub")
    peer.base_model.save_pretrained(tmp_path / "encoder")
    change(tmp_path / "encoder", mask_index=MASK)
    with caplog.at_level(logging.WARNING):
        model = load(tmp_path / "encoder")
    assert "without a head" in caplog.text
    assert f"--init {tmp_path / 'encoder'}" in caplog.text
    x = tokens()
    with torch.no_grad():
        close(hidden_states(model.network, x), peer.base_model(x)[0])
    close(logits(model.network, x), logits(load(tmp_path / "encoder").network, x))
    caplog.clear()
    load(folder)
    assert not caplog.text


LETTERS = "abcdefghij"


def with_mask(first, mask, more):
    """A vocabulary in which the mask has its id."""
    words = [*first, *more]
    words.insert(MASK, mask)
    return {word: id for id, word in enumerate(words)}


def tokenizer_of(name, folder):
    """A tokenizer of transformers with few words, as the published ones are."""
    square = ["[PAD]", "[CLS]", "[SEP]", "[UNK]"]
    if name in ("bert", "distilbert"):
        kind = transformers.BertTokenizer if name == "bert" else transformers.DistilBertTokenizer
        return kind(vocab=with_mask(square, "[MASK]", [*LETTERS, *(f"##{one}" for one in LETTERS)]))
    if name == "albert":
        words = with_mask(
            ["<pad>", "<unk>", "[CLS]", "[SEP]"], "[MASK]", ["▁", *LETTERS, *(f"▁{i}" for i in LETTERS)]
        )
        return transformers.AlbertTokenizer(vocab=[(word, -2.0 - id / 10) for word, id in words.items()])
    if name == "esm":
        words = with_mask(["<cls>", "<pad>", "<eos>", "<unk>"], "<mask>", LETTERS.upper())
        (folder / "vocab.txt").write_text("\n".join(words))
        return transformers.EsmTokenizer(vocab_file=str(folder / "vocab.txt"))
    bytewise = [*LETTERS, "Ġ", *(f"Ġ{one}" for one in LETTERS)]
    merges = [("Ġ", one) for one in LETTERS]
    if name == "roberta":
        words = with_mask(["<s>", "<pad>", "</s>", "<unk>"], "<mask>", bytewise)
        return transformers.RobertaTokenizer(vocab=words, merges=merges)
    core = tokenizers.Tokenizer(tokenizers.models.BPE(with_mask(square, "[MASK]", bytewise), merges))
    core.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = tokenizers.decoders.ByteLevel()
    core.add_special_tokens([*square, tokenizers.AddedToken("[MASK]", special=True, lstrip=True)])
    core.post_processor = tokenizers.processors.TemplateProcessing(
        "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", [("[CLS]", 1), ("[SEP]", 2)]
    )
    roles = {f"{word.strip('[]').lower()}_token": word for word in (*square, "[MASK]")}
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=core, model_input_names=["input_ids", "attention_mask"], **roles
    )


def with_tokenizer(name, folder):
    """A peer and its tokenizer, saved as transformers saves both."""
    _, folder = made(name, folder)
    tokenizer_of(name, folder).save_pretrained(folder)
    return folder, transformers.AutoTokenizer.from_pretrained(folder)


TEXTS = ["a b cab", "j", "", "a [MASK] b", "a <mask> b", "Zx a", "ABJ CA"]
PAIRS = [("a b", "c d e"), ("a", ""), ("", "b"), ("ABC", "DE"), ("a b c d e f g h i j a b", "c d")]


@pytest.mark.parametrize("name", PEERS)
def test_a_tokenizer_that_is_written_back_reads_texts_and_pairs_as_the_original(name, tmp_path):
    """Through a checkpoint as training writes it, and in the layout of transformers again."""
    folder, before = with_tokenizer(name, tmp_path / "hub")
    model = load(folder)
    save(tmp_path / "run", model.network, mask=MASK, objective=model.objective, tokenizer=model.tokenizer)
    convert(tmp_path / "run", tmp_path / "back", to=name)
    after = transformers.AutoTokenizer.from_pretrained(tmp_path / "back")
    for role in ("cls_token", "sep_token", "unk_token", "mask_token", "pad_token"):
        wanted = getattr(before, role) or before.eos_token  # ESM's separator is its eos
        assert getattr(after, role) == wanted, role
        assert getattr(after, f"{role}_id") == before.convert_tokens_to_ids(wanted)
    assert after.model_max_length == LONGEST or model.spec.reach is None
    types = model.spec.inputs.segments
    assert after.model_input_names == ["input_ids", *(["token_type_ids"] if types else []), "attention_mask"]
    for text in TEXTS:
        assert after(text)["input_ids"] == before(text)["input_ids"], text
    for pair in PAIRS:
        one, other = ([text] for text in pair)
        ours, theirs = after(one, other), before(one, other, return_token_type_ids=True)
        assert ours["input_ids"] == theirs["input_ids"], pair
        assert not types or ours["token_type_ids"] == theirs["token_type_ids"], pair
    assert load(tmp_path / "back").tokenizer.fingerprint == model.tokenizer.fingerprint


@pytest.mark.parametrize("name", PEERS)
def test_a_run_of_an_earlier_version_gets_the_whole_config_when_it_is_converted(name, tmp_path):
    folder, before = with_tokenizer(name, tmp_path / "hub")
    model = load(folder)
    save(tmp_path / "run", model.network, mask=MASK, objective=model.objective, tokenizer=model.tokenizer)
    model.tokenizer.save(tmp_path / "run")  # without the inputs of the network
    assert "model_input_names" not in json.loads((tmp_path / "run" / "tokenizer_config.json").read_text())
    convert(tmp_path / "run", tmp_path / "back", to=name)
    after = transformers.AutoTokenizer.from_pretrained(tmp_path / "back")
    assert after("a b", "c")["input_ids"] == before("a b", "c")["input_ids"]
    assert after.cls_token == before.cls_token


@pytest.mark.parametrize("template", [True, False])
@pytest.mark.parametrize("name", PEERS)
def test_pairs_are_framed_as_by_the_tokenizers_of_transformers(name, template, tmp_path):
    folder, peer = with_tokenizer(name, tmp_path / "hub")
    if not template:  # then the network knows
        load(folder).tokenizer.save(folder)
        change(folder, "tokenizer.json", post_processor=None)
    ours = Predictor(load(folder), Answer(("x", "y")), Reading(length=LONGEST))
    alone = ours.batch(ours.encode(["a b c"])[0])
    assert alone.tokens.tolist() == [peer("a b c")["input_ids"]]
    for pair in PAIRS:
        tokens, _, segments = ours.batch(ours.encode([pair])[0])
        one, other = ([text] for text in pair)  # an empty second text is one only in a list
        cut = {"truncation": "longest_first", "max_length": LONGEST}
        wanted = peer(one, other, return_token_type_ids=True, **cut)
        assert tokens.tolist() == wanted["input_ids"], pair
        assert not ours.model.spec.inputs.segments or segments.tolist() == wanted["token_type_ids"]


def test_the_template_of_a_tokenizer_counts_more_than_the_network(tmp_path):
    """There are RoBERTas with BERT's tokenizer and one token between the texts."""
    _, folder = made("roberta", tmp_path / "hub")
    tokenizer_of("bert", folder).save_pretrained(folder)
    ours = Predictor(load(folder), Answer(("x", "y")))
    assert ours.batch(ours.encode([("a", "b")])[0]).tokens.tolist() == [[1, 4, 2, 5, 2]]


def headless(folder, name="bert"):
    """An encoder without a head, with a tokenizer."""
    peer, _ = made(name, folder / "hub")
    peer.base_model.save_pretrained(folder / "encoder")
    tokenizer_of(name, folder / "encoder").save_pretrained(folder / "encoder")
    change(folder / "encoder", mask_index=MASK)
    return folder / "encoder"


def test_a_new_head_is_remembered_through_conversions_and_classifiers_until_it_is_trained(tmp_path, caplog):
    def said(what):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            found = what()
        return found, caplog.text

    model, text = said(lambda: load(headless(tmp_path)))
    assert model.new_head
    assert "A new head was made" in text
    convert(tmp_path / "encoder", tmp_path / "ours")
    convert(tmp_path / "encoder", tmp_path / "half", dtype="bfloat16")
    convert(tmp_path / "ours", tmp_path / "back", to="bert")
    for name in ("ours", "half", "back"):
        again, text = said(lambda name=name: load(tmp_path / name))
        assert again.new_head, name
        assert f"in {tmp_path / name} is new and was never trained" in text
        assert f"unmask train --init {tmp_path / name}" in text
    assert said(lambda: load(tmp_path / "ours", headed=False))[1] == ""
    with appearing(tmp_path / "mood") as draft:
        write_predictor(draft, Predictor(model, Answer(("x", "y"))), {})
    assert said(lambda: Predictor.load(tmp_path / "mood"))[1] == ""
    assert "never trained" in said(lambda: load(tmp_path / "mood"))[1]
    save(tmp_path / "run", model.network, mask=MASK, tokenizer=model.tokenizer)  # as training does
    again, text = said(lambda: load(tmp_path / "run"))
    assert not again.new_head
    assert not text


def test_a_new_pooler_has_the_logits_and_gradients_of_transformers_with_the_same_weights(tmp_path):
    torch.manual_seed(0)
    wide = {"intermediate_size": 24, "max_position_embeddings": LONGEST, **SIZES}
    peer = transformers.BertForSequenceClassification(transformers.BertConfig(num_labels=3, **wide)).eval()
    for parameter in peer.parameters():
        parameter.data.add_(torch.randn(parameter.shape) * 0.2)
    peer.save_pretrained(tmp_path)
    tokenizer_of("bert", tmp_path).save_pretrained(tmp_path)
    model = load(tmp_path, headed=False)
    ours = (
        Predictor(model, Answer(("x", "y", "z")), Reading(length=LONGEST, pool="first")).requires_grad_(True).eval()
    )
    batch = ours.batch(ours.encode([("a b c", "d"), ("j", "a b c d e")])[0])
    real = (torch.arange(batch.tokens.shape[1]) < batch.lengths[:, None]).long()
    theirs = peer(batch.tokens, attention_mask=real, token_type_ids=batch.segments)
    ours.head.load_state_dict(peer.classifier.state_dict())
    assert (ours.judge(batch) - theirs.logits).abs().max() > 1e-3  # the published pooler is not used
    ours.parts["pooler"].load_state_dict(peer.bert.pooler.dense.state_dict())
    close(ours.judge(batch), theirs.logits)
    ours.judge(batch).square().sum().backward()
    theirs.logits.square().sum().backward()
    close(ours.parts["pooler"].weight.grad, peer.bert.pooler.dense.weight.grad)
    close(ours.backbone.words.grad, peer.bert.embeddings.word_embeddings.weight.grad)
    assert ours.backbone.pooler["dense"].weight.grad is None


def mosaic_of(peer):
    """The tensors of a BERT in MosaicBERT's layout: joined queries, keys and values, and a gate that is always 1."""
    old, new = peer.state_dict(), {}
    for name, tensor in old.items():
        if not any(part in name for part in ("query", "key", "value", "intermediate", "position", "decoder")):
            name = name.replace("0.output.dense", "0.mlp.wo").replace("0.output.LayerNorm", "0.mlp.layernorm")
            new[name.replace("attention.mlp", "attention.output")] = tensor.contiguous()
    for end in ("weight", "bias"):
        parts = [old[f"bert.encoder.layer.0.attention.self.{kind}.{end}"] for kind in ("query", "key", "value")]
        new[f"bert.encoder.layer.0.attention.self.Wqkv.{end}"] = torch.cat(parts)
    return new


def test_linear_biases_and_a_gated_mlp_are_those_of_mosaicbert(tmp_path):
    """The attention of transformers' BERT with the biases as its mask; the MLP by its formula."""
    peer, folder = made("bert", tmp_path / "hub", num_hidden_layers=1)
    layer, x = peer.bert.encoder.layer[0], tokens()
    tensors = mosaic_of(peer)
    gated = torch.randn(2 * 24, 16, generator=torch.Generator().manual_seed(1))
    tensors["bert.encoder.layer.0.mlp.gated_layers.weight"] = gated
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    change(folder, alibi_starting_size=LONGEST, auto_map={"AutoModel": "evil.py"})
    peer.bert.embeddings.position_embeddings.weight.data.zero_()
    place = torch.arange(LONGEST)
    slopes = torch.tensor([2.0**-4, 2.0**-8])  # of two heads
    biases = -slopes[None, :, None, None] * (place[:, None] - place).abs()
    with torch.no_grad():
        h = layer.attention(peer.bert.embeddings(x), attention_mask=biases)[0]
        up, gate = (h @ gated.T).chunk(2, -1)
        h = layer.output(torch.nn.functional.gelu(up) * gate, h)
        wanted = peer.cls(h)
    model = load(folder)
    close(logits(model.network, x), wanted)
    longer = tokens(length=40)
    assert logits(model.network, longer).shape == (3, 40, 40)  # no table of positions
    convert(folder, tmp_path / "back", to="mosaicbert")
    after = load_file(tmp_path / "back" / "model.safetensors")
    assert all(torch.equal(after[name], tensor) for name, tensor in tensors.items())
    assert alibi_slopes(3) == [2.0**-4, 2.0**-8, 2.0**-2]


def test_the_pooler_of_a_file_is_kept_and_pools(tmp_path):
    torch.manual_seed(0)
    made("bert", tmp_path / "hub")
    config = transformers.BertConfig.from_pretrained(tmp_path / "hub")
    peer = transformers.BertModel(config).eval()
    peer.save_pretrained(tmp_path / "encoder")
    change(tmp_path / "encoder", mask_index=MASK)
    model, x = load(tmp_path / "encoder"), tokens()
    assert model.spec.pooled
    with torch.no_grad():
        close(model.network.pool(hidden_states(model.network, x)), peer(x).pooler_output)
    assert {p.shape for p in model.network.idle} == {(16, 16), (16,)}


def test_a_classifier_of_pairs_has_the_logits_and_gradients_of_transformers(tmp_path):
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcdefghij", "[MASK]"]
    torch.manual_seed(0)
    wide = {"intermediate_size": 24, "max_position_embeddings": LONGEST, **SIZES, "vocab_size": len(special)}
    peer = transformers.BertForSequenceClassification(transformers.BertConfig(num_labels=3, **wide)).eval()
    for parameter in peer.parameters():
        parameter.data.add_(torch.randn(parameter.shape) * 0.2)
    peer.save_pretrained(tmp_path)
    (tmp_path / "vocab.txt").write_text("\n".join(special) + "\n")
    ours = Predictor(load(tmp_path), Answer(("x", "y", "z")), Reading(length=LONGEST)).requires_grad_(True)
    ours.head.load_state_dict(peer.classifier.state_dict())
    rows, cut = ours.encode([("a b c d e", "f g"), ("a", "b c d e f g h i j a b"), ("j", "")])
    assert cut == 1
    batch = ours.batch(rows)
    real = (torch.arange(batch.tokens.shape[1]) < batch.lengths[:, None]).long()
    targets = torch.tensor([2, 0, 1])
    theirs = peer(batch.tokens, attention_mask=real, token_type_ids=batch.segments, labels=targets)
    found = ours.eval().judge(batch)
    close(found, theirs.logits)
    loss = ours.answer.losses(found, targets.float()).sum() / 3
    close(loss, theirs.loss)
    loss.backward()
    theirs.loss.backward()
    for name, parameter in peer.bert.named_parameters():
        close(ours.backbone.get_parameter(name).grad, parameter.grad)
    close(ours.head.weight.grad, peer.classifier.weight.grad)


def test_old_names_of_norms_and_parts_of_other_tasks_are_understood(tmp_path):
    peer, folder = made("bert", tmp_path / "hub")
    old = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        if "LayerNorm" in name:
            name = name.replace(".weight", ".gamma").replace(".bias", ".beta")
        old[name] = tensor
    old |= {"cls.seq_relationship.weight": torch.ones(2, 16), "bert.embeddings.position_ids": torch.arange(12)[None]}
    old["cls.predictions.decoder.weight"] = old["bert.embeddings.word_embeddings.weight"].clone()
    save_file(old, folder / "model.safetensors", metadata={"format": "pt"})
    x = tokens()
    close(logits(load(folder).network, x), theirs(peer, x))
    old["cls.predictions.decoder.weight"] += 1
    save_file(old, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match="they are tied"):
        load(folder)


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"position_embedding_type": "relative_key"}, "position_embedding_type = 'relative_key'"),
        ({"is_decoder": True}, "is_decoder = True"),
        ({"hidden_act": "relu"}, "hidden_act = 'relu'"),
        ({"num_hidden_layers": 3}, "is missing"),
        ({"num_hidden_layers": 2**30}, "more layers than"),
        ({"vocab_size": 39}, "has shape"),
        ({"mask_index": 40}, "one of 0 to 39"),
        ({"mask_index": None}, "which id is the mask"),
        ({"unmask_objective": "ar"}, "cannot record that the objective is 'ar'"),
    ],
)
def test_another_network_is_refused_by_name(keys, told, tmp_path):
    _, folder = made("bert", tmp_path / "hub")
    with pytest.raises(UserError, match=told):
        load(change(folder, **keys))


def test_a_row_longer_than_the_table_of_positions_is_refused(tmp_path):
    network = load(made("bert", tmp_path / "hub")[1]).network
    with pytest.raises(UserError, match=r"has 13 tokens, .* has 12 positions"):
        hidden_states(network, tokens(length=13))
