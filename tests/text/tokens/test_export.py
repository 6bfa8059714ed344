"""What is written beside a vocabulary: a template for texts and pairs, the inputs of the network, special tokens."""

import json

import tokenizers
from tokenizers import models, pre_tokenizers, processors

from unmask.text.tokens.export import Inputs, config_of, is_partial, separators_in, unknown_token, with_template
from unmask.text.tokens.tokenizer import Tokenizer

WORDS = {"<s>": 0, "</s>": 1, "<mask>": 2, "a": 3, "b": 4, "<unk>": 5}


def core(post=None):
    found = tokenizers.Tokenizer(models.WordLevel(WORDS, unk_token="<unk>"))
    found.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if post is not None:
        found.post_processor = post
    return found


def read(found, *texts):
    encoding = found.encode(*texts)
    return encoding.ids, encoding.type_ids


def test_texts_and_pairs_are_framed_with_the_separators_and_segments_of_the_network():
    plain = core()
    one = with_template(plain, 0, 1, Inputs(segments=True))
    assert read(one, "a b") == ([0, 3, 4, 1], [0] * 4)
    assert read(one, "a", "b") == ([0, 3, 1, 4, 1], [0, 0, 0, 1, 1])
    two = with_template(core(processors.ByteLevel()), 0, 1, Inputs(separators=2))
    assert read(two, "a", "b") == ([0, 3, 1, 1, 4, 1], [0] * 6)
    assert [separators_in(each) for each in (plain, one, two)] == [0, 1, 2]
    assert plain.post_processor is None  # a copy is framed
    own = core(processors.RobertaProcessing(("</s>", 1), ("<s>", 0)))
    assert with_template(own, 0, 1, Inputs(segments=True)) is own


def test_the_token_for_unknown_text_is_that_of_the_model_or_has_a_usual_name():
    assert unknown_token(core()) == "<unk>"
    bytewise = tokenizers.Tokenizer(models.BPE({"a": 0, "[UNK]": 1}, []))
    assert unknown_token(bytewise) == "[UNK]"
    unigram = tokenizers.Tokenizer(models.Unigram([("x", -1.0), ("?", -2.0)], unk_id=1))
    assert unknown_token(unigram) == "?"
    assert unknown_token(tokenizers.Tokenizer(models.BPE({"a": 0}, []))) is None


def test_the_config_of_an_encoder_says_what_it_reads():
    names = {"bos_token": "<s>", "eos_token": "</s>", "mask_token": "<mask>"}
    found = config_of(names, None, Inputs(24, segments=True))
    assert found["model_input_names"] == ["input_ids", "token_type_ids", "attention_mask"]
    assert (found["cls_token"], found["sep_token"], found["model_max_length"]) == ("<s>", "</s>", 24)
    assert "model_max_length" not in config_of(names, None, Inputs())
    assert "cls_token" not in config_of(names, None, None)


def test_a_config_without_the_inputs_is_partial(tmp_path):
    tokenizer = Tokenizer(core(), 2, bos=0, eos=1)
    assert not is_partial(tmp_path)
    tokenizer.save(tmp_path)
    assert is_partial(tmp_path)
    tokenizer.save(tmp_path, Inputs())
    assert not is_partial(tmp_path)
    assert json.loads((tmp_path / "tokenizer.json").read_text())["post_processor"]["type"] == "TemplateProcessing"
    assert tokenizer.encode("a") == [3]
    again = Tokenizer.load(tmp_path)
    assert again.encode("a") == [3]
    assert again.fingerprint == tokenizer.fingerprint


def test_esm_from_its_vocabulary_frames_a_protein_in_other_libraries(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(["<cls>", "<pad>", "<eos>", "<unk>", *"LAGMKT", "<mask>"]))
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "EsmTokenizer"}')
    tokenizer = Tokenizer.load(tmp_path)
    tokenizer.save(tmp_path)
    whole = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert whole.encode("MKT").tokens == ["<cls>", "M", "K", "T", "<eos>"]
    assert whole.encode("M", "K").tokens == ["<cls>", "M", "<eos>", "K", "<eos>"]
    assert tokenizer.encode("MKT") == [7, 8, 9]
