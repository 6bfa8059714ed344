"""A dialect: how the files of one family of published models describe a `decoder`, and how the network is used.

It says which id is the mask, whether position i is predicted at i − 1, blocks, the tokens that end a text, and its
authors' sampler. `formats/dialects.py` has the tables, `formats/decoder.py` reads them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from unmask.model.formats.keys import Keys


@dataclass(frozen=True)
class Dialect:
    """A family of published models."""

    name: str
    about: str  # one line for lists
    kind: str | None  # config.json's model_type; None: it has none
    keys: Keys
    fields: Mapping[str, Any] = field(default_factory=dict)  # of the spec, the same in the whole family
    fixed: Mapping[str, Any] = field(default_factory=dict)  # keys that have only one value here
    marked: tuple[str, ...] = ()  # keys that config.json must have to be of this family
    begins: str = ""  # how names of tensors begin that tell it from others with the same model_type
    names: Mapping[str, str] = field(default_factory=dict)  # parts of tensors' names, theirs to ours
    dropped: tuple[str, ...] = ()  # parts of names that the network does not have
    fused: Literal["", "stacked", "grouped"] = ""  # queries, keys and values in one tensor: one after the other, or
    # of each group of heads
    transposed: bool = False  # matrices are [in, out]
    stated: bool = False  # files do not tell it from other families: a user has to name it
    hub: tuple[str, ...] = ()  # repositories that are of this family
    causal: bool = False  # autoregressive
    shift: bool = False  # position i is predicted at i − 1; the first token of a row is given
    block: int | str = 0  # tokens per block, or their key in config.json; 0: it sees both sides of everything
    opens: bool = False  # the first token of a block is predicted before the others, from the finished text alone
    part: int = 0  # tokens of a block that its authors' sampler fills before the next ones of it; 0: all
    aligned: bool = False  # its authors' sampler begins a block where the prompt ends
    mask_row: bool = False  # the embedding has one row more than config.json says, and than the head: the mask's
    mask: Mapping[int, int] = field(default_factory=dict)  # the mask by the number of ids, where config.json has none
    word: Mapping[int, int] = field(default_factory=dict)  # the same, where it is an ordinary word: blanks get an id
    tokens: Mapping[int, int] = field(default_factory=dict)  # ids that have a token, by the number of ids
    sampling: Mapping[str, Any] = field(default_factory=dict)  # its authors' settings
    new: int = 0  # tokens that its authors' sampler draws after a prompt; 0: as many as a row has left
    trained: int = 0  # tokens of the rows it was trained on, where config.json has a greater number
    ends: tuple[int, ...] = ()  # ids that end a text, of its published vocabulary; beside eos_token_id of config.json
    template: str = ""  # of conversations
    bound: str = "upper bound on -log p of the text"  # what its number means
