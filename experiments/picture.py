"""The moving picture of README: a story of `stories` as it emerges from masks.

python experiments/picture.py docs/pictures/story.gif
"""

import sys
from pathlib import Path

import unmask
from studies.gif import gif
from unmask.views.film import film

model = unmask.load("stories")
sample = unmask.sample(model, prompt="Once upon a time", seed=int(sys.argv[2]) if len(sys.argv) > 2 else 0)[0]
caption = f"{sample.sampler}: {sample.law}. {sample.calls} network calls, seed {sample.seed}."
Path(sys.argv[1]).write_bytes(gif(film(model.text_tokenizer(), sample.tokens, sample.trace, caption=caption)))
