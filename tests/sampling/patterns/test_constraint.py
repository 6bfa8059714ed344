"""Patterns always hold: the machines against `re`, the law against enumeration, and no dead ends anywhere."""

import re
from itertools import product

import pytest
import tokenizers
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import exact
from sampling import laws
from sampling.laws import last, law_of
from unmask.errors import UserError
from unmask.sampling.logits import LogitOptions
from unmask.sampling.masked import Sliding, fill
from unmask.sampling.patterns.constraint import Constraint, matching, one_of
from unmask.sampling.patterns.regex import machine_of, parse_regex
from unmask.sampling.patterns.tokens import Words, anything, over_tokens, words_of
from unmask.sampling.policies.confidence import Ordered
from unmask.sampling.policies.planned import Ancestral, FirstHitting, Groups
from unmask.text.prompt.canvas import blank, of_rows, of_tokens
from unmask.text.tokens.tokenizer import Tokenizer
from unmask.text.tokens.vocabulary import bpe, byte

ENOUGH = 1e-4
ABC = Words((b"a", b"b", b"c", b""), (b"a", b"b", b"c", b""), silent=frozenset([3]))

atoms = st.sampled_from(["a", "b", "c", ".", "[ab]", "[^a]", r"\w", "é", "\\d", "(?i:A)"])
patterns = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda two: f"(?:{two[0]}|{two[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{2,}", "*?"])).map(
            lambda two: f"(?:{two[0]}){two[1]}"
        ),
    ),
    max_leaves=5,
)


@pytest.mark.slow
@given(pattern=patterns, text=st.text(alphabet="abcA1é€😀\n", max_size=6))
@settings(max_examples=300, deadline=None)
def test_a_machine_matches_what_python_matches(pattern, text):
    assert machine_of(pattern).matches(text.encode()) == (re.fullmatch(pattern, text, re.ASCII) is not None)


@pytest.mark.parametrize(
    "pattern",
    [r"[\W\D]", "[^é-\U0001f600]+", "[߀-\U00010001]", r"[^\W\d]", "[]a]", r"\u20ac|\x41", "(?s:.)", "(?x) a b"],
)
def test_a_machine_matches_single_characters_as_python_does(pattern):
    machine = machine_of(pattern)
    some = [*range(0x900), *range(0xFFF0, 0x10010), 0x20AC, 0xD7FF, 0xE000, 0x1F600, 0x1F601, 0x10FFFF, 0xFFFF]
    for character in map(chr, some):
        matched = re.fullmatch(pattern, character, re.ASCII) is not None
        assert machine.matches(character.encode()) == matched, hex(ord(character))


@pytest.mark.slow
def test_a_machine_of_many_states_is_made_in_a_moment():
    machine = machine_of(".{0,300}b")
    assert len(machine.table) > 1000
    assert [machine.matches(b"a" * count + b"b") for count in (0, 300, 301)] == [True, True, False]
    assert machine_of("ab" * 5000).matches(b"ab" * 5000)


@pytest.mark.parametrize(
    "pattern, states", [("(a|b)*abb", 5), ("a{0,3}|a{2,7}", 9), ("(ab|ac|db|dc)*", 3), ("[ab]|b", 3)]
)
def test_a_machine_has_no_more_states_than_it_needs(pattern, states):
    assert len(machine_of(pattern).table) == states  # the dead one included


def test_a_set_within_a_set_is_read_as_python_reads_it_now():
    assert machine_of("[[a]").matches(b"[")


def test_a_machine_takes_no_bytes_that_are_not_utf8():
    machine = machine_of("(?s:.)")
    for wrong in (b"\x80", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe0\x80\x80", b"\xe2\x82"):
        assert not machine.matches(wrong)


@pytest.mark.parametrize(
    "pattern, told",
    [
        ("a(b", "column 2"),
        ("ab[", "column 3"),
        ("a{3,1}", "column 3"),
        ("x**", "column 3"),
        ("^a", "anchors"),
        (r"(a)\1", "references"),
        ("(?=a)a", "lookahead"),
        ("(?>a)", "atomic"),
        ("((a{100}){100}){100}", "too|states"),
        ("(?u)a", "incompatible"),
        ("a" * 100_001, "100,000 characters; saw 100,001"),
        ("(?:" * 900 + "a" + ")" * 900, "groups within groups"),
        ("a{1,4294967290}", "20,000 states"),
        ("(?:a(?:)){1,4294967290}", "20,000 states"),
    ],
)
def test_a_wrong_pattern_is_refused_with_its_column_or_its_reason(pattern, told):
    with pytest.raises(UserError, match=told):
        machine_of(pattern)


def test_a_pattern_that_would_take_long_is_refused_though_its_states_are_few():
    with pytest.raises(UserError, match="too many ways"):
        machine_of("((a{0,9}){0,9}){0,9}", largest=100)
    with pytest.raises(UserError, match="more than 100 states"):
        machine_of("[ab]*a[ab]{9}", largest=100)


@pytest.mark.parametrize(
    "pattern", ["(?:){1,4294967294}", "()", "(?:(?:){1,3000}){1,3000}", "(?:|(){9}){4294967290}", "(?:a{0}){2,}", ""]
)
def test_a_repeat_of_nothing_is_nothing(pattern):
    assert len(machine_of(pattern).table) == 2
    both = machine_of(f"a{pattern}b|{pattern}c")
    assert [both.matches(text) for text in (b"ab", b"c", b"abc", b"")] == [True, True, False, False]


def test_nothing_within_a_repeat_costs_nothing_in_its_rounds():
    assert parse_regex("(?:a" + "(?:)" * 20_000 + "(|){0,9}(?:(?:b){0}){7}" + "){1,9000}") == parse_regex(
        "(?:a){1,9000}"
    )
    assert parse_regex("((a)(?i:b|))") == parse_regex("a(?i:b|)")


def test_overlapping_ranges_of_a_class_are_one_range():
    ranges = "".join(f"{chr(a)}-{chr(b)}" for a in range(97, 123) for b in range(a, 123))
    assert parse_regex(f"[{ranges}]") == parse_regex("[a-z]")
    assert parse_regex(rf"[\x00{ranges}\x01-\x05\d]") == parse_regex(r"[\x00-\x050-9a-z]")


def test_compilation_ends_when_nobody_waits_for_it():
    class Gone(Exception):
        pass

    left = 20

    def check():
        nonlocal left
        left -= 1
        if not left:
            raise Gone

    for pattern in (".{0,300}b", "[ab]{40}"):
        left = 20
        with pytest.raises(Gone):
            matching(pattern, words_of(byte()), check=check)
    machine, left = machine_of("[ab]{40}"), 1
    with pytest.raises(Gone):
        over_tokens(machine, words_of(byte()), check=check)


def test_a_long_chain_of_states_is_compiled_in_one_pass():
    automaton = over_tokens(machine_of("a{2000}"), ABC)
    assert len(automaton.table) == 2000 + 4  # 1 to 2000, two starts, the end and the dead state
    lacking = over_tokens(machine_of("a{2000}d|b"), ABC)
    after_a, after_b = lacking.table[0, lacking.classes[:2]].tolist()
    assert after_a == len(lacking.table) - 1
    assert lacking.accepts[after_b]


def test_equal_sets_of_allowed_tokens_share_their_moves_and_many_large_ones_are_refused():
    letters = byte()
    automaton = over_tokens(machine_of("[a-z ]{1,1900}"), words_of(letters))
    same = Constraint(automaton, allowed={place: [97, 98] for place in range(120)})
    assert len({id(moves) for moves in same.own_moves.values()}) == 1
    assert same.bytes < automaton.bytes + 2**20
    large = machine_of("|".join(f"[{chr(i)}x]{{200}}" for i in range(97, 123)))
    sets = {place: [97 + i for i in range(26) if place >> i & 1] for place in range(1, 2000)}
    with pytest.raises(UserError, match=r"1999 sets of allowed tokens needs .* numbers; at most"):
        Constraint(over_tokens(large, words_of(letters), ends=False), allowed=sets)
    with pytest.raises(UserError, match="states, too many for 4 texts of 40,000 tokens"):
        same.check(blank(4, 40_000, mask=letters.mask))


def allowed_tokens(world, pattern, state):
    """By brute force: for each hidden position, the letters with which some filling matches."""
    masked = laws.hidden(world, state)
    found = {i: set() for i in masked}
    for letters in product(range(world.letters), repeat=len(masked)):
        full = list(state)
        for i, letter in zip(masked, letters, strict=True):
            full[i] = letter
        if re.fullmatch(pattern, "".join("abc"[letter] for letter in full)):
            for i, letter in zip(masked, letters, strict=True):
                found[i].add(letter)
    return found


def restricted(world, pattern):
    """One position a call in random order, the model's conditional restricted to what can still match."""

    def move(state, call):
        found = allowed_tokens(world, pattern, state)
        for i, letters in found.items():
            probs = exact.log_p_hidden(world, torch.tensor(state), i).exp()
            total = sum(float(probs[letter]) for letter in letters)
            for letter in letters:
                yield (*state[:i], letter, *state[i + 1 :]), float(probs[letter]) / total / len(found)

    return move


def shape_of(pattern, **options):
    return LogitOptions(constraint=matching(pattern, ABC, **options))


@pytest.mark.parametrize("pattern", ["a.*|b[bc]a", "(ab|c)+", ".*a", "[ab]{3}|ccc"])
def test_the_exact_sampler_follows_the_models_conditionals_restricted_by_reachability(pattern):
    world = exact.TableWorld.random(7)
    law = law_of(world, restricted(world, pattern))
    draws = laws.draws(world, FirstHitting(), options=shape_of(pattern), rows=20_000)
    assert exact.chi_square_p(law, draws) > ENOUGH


def test_tokens_of_one_call_are_drawn_from_the_left_each_restricted_by_those_before():
    world, pattern = exact.TableWorld.random(8), "aab|bca|cab|abc"
    law = {}
    start = (world.mask,) * 3
    probs = [exact.log_p_hidden(world, torch.tensor(start), i).exp().tolist() for i in range(3)]

    def walk(state, chance):
        masked = laws.hidden(world, state)
        if not masked:
            law[state] = law.get(state, 0.0) + chance
            return
        i = masked[0]
        letters = allowed_tokens(world, pattern, state)[i]
        total = sum(probs[i][letter] for letter in letters)
        for letter in letters:
            walk((*state[:i], letter, *state[i + 1 :]), chance * probs[i][letter] / total)

    walk(start, 1.0)
    draws = laws.draws(world, Groups(sizes=(3,)), options=shape_of(pattern), rows=20_000)
    assert exact.chi_square_p(law, draws) > ENOUGH


@pytest.mark.slow
@given(
    pattern=patterns,
    start=st.lists(st.integers(0, 3), min_size=1, max_size=5),
    policy=st.sampled_from([FirstHitting(), Ancestral(2), Ordered("confidence"), Groups(calls=2)]),
    whole=st.booleans(),
    seed=st.integers(0, 99),
)
@settings(max_examples=200, deadline=None)
def test_every_output_matches_or_impossibility_is_told_before_any_call(pattern, start, policy, whole, seed):
    calls = 0

    def network(x_t, sigma, rows):
        nonlocal calls
        calls += 1
        generator = torch.Generator().manual_seed(seed)
        return 3 * torch.randn(len(rows), 4, generator=generator, dtype=torch.float64)

    options = LogitOptions(constraint=matching(pattern, ABC, whole=whole))
    canvas = of_tokens(torch.tensor([start]), mask=3)
    spelled = "".join("abc?"[token] for token in start)
    ways = ["".join(letters) for letters in product(*("abc" if s == "?" else s for s in spelled))]

    def fits(text):
        if whole:
            return re.fullmatch(pattern, text, re.ASCII)
        stretches = [text[m.start() : m.end()] for m in re.finditer(r"\?+", spelled)]
        return all(re.fullmatch(pattern, stretch, re.ASCII) for stretch in stretches)

    if not any(fits(way) for way in ways):
        with pytest.raises(UserError, match=r"position \d|unfinished"):
            next(fill(network, canvas, policy, seed=seed, options=options))
        assert calls == 0
        return
    result = canvas.tokens[0].tolist()
    for step in fill(network, canvas, policy, seed=seed, options=options):
        result = step.canvas.tokens[0].tolist()
    text = "".join("abc"[token] for token in result)
    assert fits(text)
    assert all(old in ("?", new) for old, new in zip(spelled, text, strict=True))


def flat(size):
    return lambda x_t, sigma, rows: torch.zeros(len(rows), size)


TEXTS = ["the cat sat on the mat 12 times", "the hat is 4 cats, and the rat is 12 years old", "café naïve 12 the"] * 4


@pytest.fixture(scope="module")
def small_bpe():
    return bpe(TEXTS, 300)


@pytest.mark.parametrize(
    "pattern", [r"the \w+ is \d+ years", r"(?:é|à|€){4,}", r'\{"age": \d{1,3}, "name": "[a-z ]+"\}', "(?:the cat )+"]
)
def test_tokens_of_a_real_vocabulary_cross_the_borders_of_the_pattern(small_bpe, pattern):
    words = words_of(small_bpe)
    options = LogitOptions(constraint=matching(pattern, words))
    canvas = blank(8, 24, mask=small_bpe.mask)
    rows = last(fill(flat(small_bpe.size), canvas, Ancestral(6), options=options)).canvas.tokens.tolist()
    texts = [small_bpe.decode(row) for row in rows]
    assert all(re.fullmatch(pattern, text, re.ASCII) for text in texts), texts
    assert len(set(texts)) > 1
    assert any(len(words.first[token]) > 1 for row in rows for token in row)


def test_words_are_what_decoding_adds(small_bpe):
    for tokenizer in (small_bpe, byte()):
        words = words_of(tokenizer)
        ids = tokenizer.encode("the cat, naïve: 12 hats €")
        assert b"".join(words.later[id] for id in ids).decode() == tokenizer.decode(ids)


def wordpiece():
    """Words in the manner of BERT: a space before each but the first, none before ##pieces and punctuation."""
    names = ["[PAD]", "[MASK]", "[SEP]", "the", "cat", "##s", "sat", ".", "##er", "12", "a"]
    core = tokenizers.Tokenizer(tokenizers.models.WordPiece({name: i for i, name in enumerate(names)}, unk_token="a"))
    core.decoder = tokenizers.decoders.WordPiece()
    core.add_special_tokens(names[:3])
    return Tokenizer(core, mask=1, pad=0, eos=2)


def metaspace():
    """Words in the manner of SentencePiece: ▁ is the space, left out at the start of a text."""
    names = ["<pad>", "<mask>", "</s>", "▁the", "▁cat", "s", "▁sat", ".", "er", "▁12", "▁", "the"]
    core = tokenizers.Tokenizer(tokenizers.models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="s"))
    core.decoder = tokenizers.decoders.Metaspace()
    core.add_special_tokens(names[:3])
    return Tokenizer(core, mask=1, pad=0, eos=2)


@pytest.mark.parametrize("tokenizer", [wordpiece(), metaspace()], ids=["wordpiece", "metaspace"])
def test_vocabularies_whose_spaces_depend_on_the_place_match_as_decoded(tokenizer):
    pattern = r"the cats?( sat| 12)*\."
    options = LogitOptions(constraint=matching(pattern, words_of(tokenizer)))
    canvas = blank(32, 8, mask=tokenizer.mask)
    texts = {tokenizer.decode(row) for row in last(fill(flat(tokenizer.size), canvas, options=options)).canvas.tokens}
    assert all(re.fullmatch(pattern, text) for text in texts), texts
    assert len(texts) > 3
    given = [tokenizer.core.token_to_id(name) for name in tokenizer.pieces if name in ("the", "▁the")][:1]
    behind = of_tokens(torch.tensor([[*given, *[tokenizer.mask] * 4]]), mask=tokenizer.mask)
    options = LogitOptions(constraint=matching(r" cats \d+", words_of(tokenizer)))
    row = last(fill(flat(tokenizer.size), behind, options=options)).canvas.tokens[0]
    assert tokenizer.decode(row) == "the cats 12"


def test_a_decoder_that_does_not_join_token_by_token_is_refused():
    core = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "[MASK]": 1}, unk_token="a"))
    core.decoder = tokenizers.decoders.CTC()
    with pytest.raises(UserError, match="CTC"):
        words_of(Tokenizer(core, mask=1))


def test_behind_the_match_stand_only_eos_and_padding(small_bpe):
    options = LogitOptions(constraint=matching("the cat", words_of(small_bpe)))
    tokens = last(fill(flat(small_bpe.size), blank(4, 12, mask=small_bpe.mask), options=options)).canvas.tokens
    for row in tokens.tolist():
        end = row.index(small_bpe.eos)
        assert small_bpe.decode(row[:end]) == "the cat"
        assert set(row[end:]) <= {small_bpe.eos, small_bpe.pad}
    with pytest.raises(UserError, match="no text of 12 tokens can match"):
        next(fill(flat(300), blank(1, 12, mask=small_bpe.mask), options=LogitOptions(constraint=strict(small_bpe))))


def strict(tokenizer):
    return matching("the cat", words_of(tokenizer), ends=False)


def test_a_prompt_and_blanks_are_constrained_by_themselves_or_as_a_whole():
    letters = byte()
    words = words_of(letters)
    given = [*letters.encode("n="), *[letters.mask] * 3, *letters.encode(", m="), *[letters.mask] * 2]
    canvas = of_tokens(torch.tensor([given]), mask=letters.mask)
    own = LogitOptions(constraint=matching(r"\d+", words, ends=False))
    whole = LogitOptions(constraint=matching(r"n=(a+|b+), m=\w\d", words, whole=True))
    for options, expected in ((own, r"n=\d{3}, m=\d{2}"), (whole, r"n=(aaa|bbb), m=\w\d")):
        for seed in range(5):
            tokens = last(fill(flat(letters.size), canvas, seed=seed, options=options)).canvas.tokens[0]
            assert re.fullmatch(expected, letters.decode(tokens))
    with pytest.raises(UserError, match="past position 0"):
        next(fill(flat(259), canvas, options=LogitOptions(constraint=matching("m.*", words, whole=True))))


def test_rows_of_different_lengths_and_sliding_windows_match_too():
    letters = byte()
    words = words_of(letters)
    rows = of_rows([[letters.mask] * 5, [letters.mask] * 9], mask=letters.mask)

    def network(x_t, sigma, rows, *, lengths=None):
        return torch.zeros(len(rows), letters.size)

    options = LogitOptions(constraint=matching("(ab|c)+", words))
    tokens = last(fill(network, rows, options=options)).canvas.tokens
    assert all(re.fullmatch("(ab|c)+", letters.decode(row[:n])) for row, n in zip(tokens, (5, 9), strict=True))
    long = last(fill(network, blank(3, 12, mask=letters.mask), windows=Sliding(4, 2), options=options)).canvas.tokens
    assert all(re.fullmatch("(ab|c)+", letters.decode(row)) for row in long)


def test_a_list_of_texts_gives_one_of_them():
    letters = byte()
    options = LogitOptions(constraint=one_of(["yes", "no", "may.be"], words_of(letters)))
    tokens = last(fill(flat(letters.size), blank(64, 6, mask=letters.mask), options=options)).canvas.tokens
    assert {letters.decode(row) for row in tokens} == {"yes", "no", "may.be"}
    with pytest.raises(UserError, match="at least one text"):
        one_of([], words_of(letters))


def test_sets_of_allowed_tokens_hold_alone_and_with_a_pattern():
    letters = byte()
    free = Constraint(anything(letters.size, mask=letters.mask), allowed={0: [65, 66], 2: [67]})
    tokens = last(
        fill(flat(letters.size), blank(50, 3, mask=letters.mask), options=LogitOptions(constraint=free))
    ).canvas.tokens
    assert set(tokens[:, 0].tolist()) == {65, 66}
    assert set(tokens[:, 2].tolist()) == {67}
    pattern = over_tokens(machine_of("(ab|ba)+"), words_of(letters), ends=False)
    both = Constraint(pattern, allowed={3: letters.encode("a")})
    tokens = last(
        fill(flat(letters.size), blank(9, 4, mask=letters.mask), options=LogitOptions(constraint=both))
    ).canvas.tokens
    assert {letters.decode(row)[2:] for row in tokens} == {"ba"}


@pytest.mark.parametrize("policy", [FirstHitting(), Ordered("entropy")])
def test_top_p_and_top_k_are_taken_of_what_can_match(policy):
    likely = torch.tensor([9.0, 1.0, 0.9, 0.0])  # almost all probability is on a token that cannot match

    for options, found in (
        ({"top_p": 0.6}, {1, 2}),
        ({"top_p": 0.4}, {1}),
        ({"top_k": 1}, {1}),
        ({"top_k": 2}, {1, 2}),
    ):
        options = LogitOptions(constraint=matching("[bc]", ABC), **options)
        steps = fill(
            lambda x_t, sigma, rows: likely.expand(len(rows), -1), blank(50, 1, mask=3), policy, options=options
        )
        assert set(last(steps).canvas.tokens.flatten().tolist()) == found


def test_impossible_sets_are_told_before_any_call():
    letters = byte()
    free = anything(letters.size, mask=letters.mask)
    canvas = of_tokens(torch.tensor([[65, letters.mask, 66]]), mask=letters.mask)
    for allowed, told in (({1: []}, "past position 1"), ({0: [66]}, "given at position 0"), ({1: [999]}, "ids in 0")):
        with pytest.raises(UserError, match=told):
            next(fill(flat(letters.size), canvas, options=LogitOptions(constraint=Constraint(free, allowed=allowed))))


def test_banned_tokens_belong_into_the_constraint():
    with pytest.raises(UserError, match="banned"):
        LogitOptions(constraint=matching("a", ABC), banned=(0,))
    assert LogitOptions(constraint=matching("a", ABC), banned=(1, 3)).banned == (1, 3)  # it has no use for these
    only_b = over_tokens(machine_of("[ab]+"), ABC, banned=(0,))
    network = lambda x_t, sigma, rows: torch.zeros(len(rows), 4)  # noqa: E731
    tokens = last(
        fill(network, blank(1, 3, mask=3), options=LogitOptions(constraint=Constraint(only_b)))
    ).canvas.tokens
    assert tokens.tolist() == [[1, 1, 1]]
