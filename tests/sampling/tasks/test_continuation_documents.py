"""Documents of varying length: a model of `rows` learns where they end."""

import random
import re
import statistics

import pytest

import unmask
from unmask.cli.main import main


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(1800)
def test_samples_are_as_long_as_the_documents_and_nothing_is_glued(tmp_path):
    """Words between brackets, of two kinds: short ones of vowels, long ones of consonants."""
    dice = random.Random(1)
    kinds = (("aeiou", 2, 4), ("bcdfg", 9, 13))
    words = []
    for _ in range(4000):
        letters, least, most = dice.choice(kinds)
        words.append("(" + "".join(dice.choices(letters, k=dice.randint(least, most))) + ")")
    data, out = tmp_path / "words.txt", tmp_path / "run"
    data.write_text("\n".join(words))
    sizes = [
        "--model.width",
        "48",
        "--model.blocks",
        "2",
        "--model.heads",
        "2",
        "--optim.batch",
        "32",
        "--steps",
        "400",
    ]
    quiet = ["--run.preview", "0", "--run.eval-every", "400", "--optim.ema", "0.98", "--optim.lr", "1e-2"]
    text = ["--text.documents", "line", "--text.tokenizer", "character"]
    assert main(["train", "--data", str(data), "--out", str(out), *text, *sizes, *quiet]) == 0
    model = unmask.load(out)
    assert (model.layout.name, model.spec.length) == ("rows", 24)
    drawn = [sample.text for sample in unmask.sample(model, n=400, seed=3, batch=100)]
    lengths, real = [len(text) for text in drawn], [len(word) for word in words]
    assert abs(statistics.mean(lengths) - statistics.mean(real)) < 0.8  # the standard error is 0.2
    assert abs(statistics.stdev(lengths) - statistics.stdev(real)) < 0.6
    whole = [text for text in drawn if re.fullmatch(r"\([aeiou]+\)|\([bcdfg]+\)", text)]
    assert len(whole) > 0.6 * len(drawn)
    assert sum(text.count("(") > 1 for text in drawn) < 0.05 * len(drawn)
