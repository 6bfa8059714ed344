"""A real GGUF file, SmolLM2-135M-Instruct, against transformers: `make gguf` fetches it."""

import os

import pytest
import torch

import unmask
from unmask.cli.inspect import describe_checkpoint
from unmask.model.checkpoint import load
from unmask.model.passing import Causal, Pass

pytestmark = [pytest.mark.gguf, pytest.mark.filterwarnings("ignore")]  # what transformers warns of while it reads it
TEXT = "Once upon a time, in 1999, there were 42 foxes; they're clever.\n\n\tÜnïcode, 日本 🦊 and   spaces too."


@pytest.fixture(scope="module")
def path():
    return os.environ["SMOLLM2_GGUF"]


@torch.no_grad()
def test_a_real_file_has_the_tokens_and_the_logits_of_transformers(path):
    transformers = pytest.importorskip("transformers")
    folder, name = os.path.split(path)
    peer = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=name)
    model = load(path, dialect="llama")
    ids = model.tokenizer.encode(TEXT)
    assert ids == tokenizer(TEXT).input_ids
    assert model.tokenizer.decode(ids) == TEXT
    x = torch.tensor([ids])
    found, wanted = model.network.head(model.network.run(Pass(x, Causal())).hidden), peer(x).logits
    assert ((found[..., : wanted.shape[-1]] - wanted).abs() / (1 + wanted.abs())).max() < 1e-4
    prompt = model.tokenizer.encode("The capital of France is")
    lead = tokenizer.bos_token_id  # ours begins every text with it
    theirs = peer.generate(torch.tensor([[lead, *prompt]]), max_new_tokens=12, do_sample=False)[0].tolist()
    ours = unmask.sample(model, prompt=prompt, length=len(theirs), temperature=0)[0].tokens
    assert ours == theirs[: len(ours)]  # a text ends at the end tokens
    assert len(ours) > 1 + len(prompt)
    assert describe_checkpoint(path, dialect="llama").parameters == model.num_parameters
