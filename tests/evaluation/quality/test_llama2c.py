"""Models of llama2.c as judges: against a forward pass and a merge loop written out in NumPy and Python."""

import struct

import numpy as np
import pytest
import torch

from unmask.errors import UserError
from unmask.evaluation.quality import llama2c
from unmask.evaluation.quality.judges import judge

WIDTH, HIDDEN, LAYERS, HEADS, GROUPS, LENGTH = 16, 24, 2, 4, 2, 32
WORDS = [*" abcdeht\n", " a", "th", "the", " the", "ab", "bc", "abc", "é"]
VOCAB = 259 + len(WORDS)
SCORES = [-float(7 * i % len(WORDS)) for i in range(len(WORDS))]  # not in the order of the words
SIZE = WIDTH // HEADS


def weights(tied=True):
    g = np.random.default_rng(0)
    shapes = [(VOCAB, WIDTH), (LAYERS, WIDTH), (LAYERS, WIDTH, WIDTH), *[(LAYERS, GROUPS * SIZE, WIDTH)] * 2]
    shapes += [(LAYERS, WIDTH, WIDTH), (LAYERS, WIDTH), (LAYERS, HIDDEN, WIDTH), (LAYERS, WIDTH, HIDDEN)]
    shapes += [(LAYERS, HIDDEN, WIDTH), (WIDTH,), (2, LENGTH, SIZE // 2), *([] if tied else [(VOCAB, WIDTH)])]
    return [g.normal(size=shape).astype("<f4") for shape in shapes]


def model_file(folder, tied=True):
    header = struct.pack("<7i", WIDTH, HIDDEN, LAYERS, HEADS, GROUPS, VOCAB if tied else -VOCAB, LENGTH)
    path = folder / "model.bin"
    path.write_bytes(header + b"".join(part.tobytes() for part in weights(tied)))
    return path


def token_file(folder):
    words = [b"<unk>", b"\n<s>\n", b"\n</s>\n", *(b"<0x%02X>" % byte for byte in range(256))]
    words += [word.encode() for word in WORDS]
    scores = [0.0] * 259 + SCORES
    body = b"".join(struct.pack("<fi", s, len(w)) + w for w, s in zip(words, scores, strict=True))
    path = folder / "tok.bin"
    path.write_bytes(struct.pack("<i", 10) + body)
    return path


def logits(ids, parts):
    """The network, position by position and head by head."""
    embedding, norm1, wq, wk, wv, wo, norm2, w1, w2, w3, last, _, *head = parts
    x = embedding[ids].astype(np.float64)

    def normed(x, weight):
        return weight * x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5)

    def turned(row, position):
        angle = position * 10000.0 ** (-2 * np.arange(SIZE // 2) / SIZE)
        even, odd = row[0::2].copy(), row[1::2].copy()
        row[0::2] = even * np.cos(angle) - odd * np.sin(angle)
        row[1::2] = even * np.sin(angle) + odd * np.cos(angle)
        return row

    for l in range(LAYERS):
        y = normed(x, norm1[l])
        q, k, v = ((y @ w[l].T.astype(np.float64)).reshape(len(ids), -1, SIZE) for w in (wq, wk, wv))
        for i in range(len(ids)):
            q[i] = [turned(row, i) for row in q[i]]
            k[i] = [turned(row, i) for row in k[i]]
        out = np.zeros_like(x).reshape(len(ids), HEADS, SIZE)
        for i in range(len(ids)):
            for h in range(HEADS):
                g = h // (HEADS // GROUPS)
                scores = k[: i + 1, g] @ q[i, h] / np.sqrt(SIZE)
                chances = np.exp(scores - scores.max())
                out[i, h] = chances / chances.sum() @ v[: i + 1, g]
        x = x + out.reshape(len(ids), WIDTH) @ wo[l].T
        y = normed(x, norm2[l])
        gate = y @ w1[l].T
        x = x + (gate / (1 + np.exp(-gate)) * (y @ w3[l].T)) @ w2[l].T
    return normed(x, last) @ (head[0] if head else embedding).T


def merged(text):
    """Letters, or their bytes, and then always the pair whose word has the best score."""
    ids = {word: 259 + i for i, word in enumerate(WORDS)}
    found = []
    for letter in " " + text:
        found += [ids[letter]] if letter in ids else [3 + byte for byte in letter.encode()]
    while True:
        pairs = [
            (-SCORES[ids[a + b] - 259], i, ids[a + b])
            for i in range(len(found) - 1)
            if (a := WORDS[found[i] - 259] if found[i] >= 259 else "?")
            + (b := WORDS[found[i + 1] - 259] if found[i + 1] >= 259 else "?")
            in ids
        ]
        if not pairs:
            return found
        _, i, best = min(pairs)
        found[i : i + 2] = [best]


@pytest.mark.parametrize("tied", [True, False])
def test_the_network_is_the_one_the_file_describes(tied, tmp_path):
    network = llama2c.read_network(model_file(tmp_path, tied))
    ids = [1, 270, 261, 14, 262, 260, 259]
    with torch.no_grad():
        ours = network(torch.tensor([ids])).logits[0].numpy()
    assert np.abs(ours - logits(ids, weights(tied))).max() < 1e-3


@pytest.mark.parametrize("text", ["the abc", "a tab\nthe bcd", "été z", "ththabcbc", "a"])
def test_tokens_merge_in_the_order_of_their_scores_and_unknown_letters_become_bytes(text, tmp_path):
    tokenizer = llama2c.read_llama2c_tokenizer(token_file(tmp_path), VOCAB)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert ids == merged(text)
    assert tokenizer.decode(ids) == text


def test_a_file_of_llama2c_judges_texts(tmp_path):
    path = model_file(tmp_path)
    token_file(tmp_path)
    one = judge(str(path))
    ids = one.encode("the abc")
    nats = one.nats(torch.tensor([ids]))[0]
    log_p = torch.from_numpy(logits(ids, weights())).log_softmax(-1)
    assert torch.allclose(nats[1:].double(), -log_p[torch.arange(len(ids) - 1), ids[1:]], atol=1e-3)
    assert (nats[0], one.eos, one.most) == (0, 1, LENGTH)


def test_damaged_files_are_refused(tmp_path):
    path = model_file(tmp_path)
    with pytest.raises(UserError, match="needs its tokenizer"):
        judge(str(path))
    tokens = token_file(tmp_path)
    tokens.write_bytes(tokens.read_bytes()[:-3])
    with pytest.raises(UserError, match="belongs to another"):
        judge(str(path))
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(UserError, match="where its header needs"):
        judge(str(path))
    path.write_bytes(b"no model")
    with pytest.raises(UserError, match=r"not a llama2\.c model"):
        judge(str(path))
    with pytest.raises(UserError, match="no file"):
        judge(str(tmp_path / "none.bin"))
