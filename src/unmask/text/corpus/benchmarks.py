"""Benchmarks of classification by name: GLUE and Genomic Benchmarks, from files below the data root or from the hub.

GLUE's files are read as they are published: tabs between cells, quotes that mean nothing, a byte-order mark, no
header in CoLA's, rows of QQP's that break off. Genomic Benchmarks are read as their package unpacks them (a folder
per class, a file per sequence) or as tables NAME.train.tsv and NAME.test.tsv with the columns label and sequence.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from unmask.errors import UserError, unknown
from unmask.text.corpus.dataset import DataSet, Unreadable
from unmask.text.corpus.examples import Columns, Example, examples
from unmask.text.corpus.named import data_root, matches
from unmask.untrusted import read_text

Splits = dict[str, list[Example]]
GLUE_HUB = "nyu-mll/glue"
GENOMIC_HUB = "katarinagresova/Genomic_Benchmarks_"


@dataclass(frozen=True)
class Benchmark:
    """A task: where its examples are, what is predicted, and how it is scored."""

    name: str
    title: str
    suite: str  # glue or genomic_benchmarks: a folder below the data root
    columns: Columns
    hub: DataSet
    hub_columns: Columns
    metrics: tuple[str, ...] = ("accuracy",)  # the first one decides
    number: bool = False  # a number is predicted, not a class
    protocol: str = "plain"  # whose settings are its own
    folder: str = ""  # its folder's name, if it is not its own
    without_header: Mapping[str, Columns] = field(default_factory=dict)  # splits whose files have none
    files: Mapping[str, str] = field(default_factory=lambda: {"train": "train", "test": "test"})  # names by split
    published: Mapping[str, int] = field(default_factory=dict)  # examples of each split
    labels: tuple[str, ...] = ()  # what the hub's whole numbers mean
    length: int = 0  # most tokens of a text in the published results; 0: the protocol's
    broken: bool = False  # its published files have rows that break off; its test file has none
    bounds: tuple[float, float] | None = None  # of the numbers that are predicted

    def splits(self, root: Path | None = None) -> Splits:
        """Its examples by split (train, valid, test): of its files, if there are any, else of the hub."""
        for place in self.places(data_root(root)):
            splits = self.in_folder(place)
            if splits:
                return splits
        try:
            return self.from_hub()
        except Unreadable as error:
            raise UserError(f"{error} {self.advice(data_root(root))}") from None

    def places(self, root: Path) -> Iterator[Path]:
        """The folders in which its files may be."""
        wanted = (self.folder or self.name).lower()
        for base in (*sorted(root.glob(f"{self.suite}*")), root):
            if base.is_dir():
                yield from (path for path in sorted(base.iterdir()) if path.is_dir() and path.name.lower() == wanted)
                yield base

    def in_folder(self, folder: Path) -> Splits:
        """The examples of a folder; empty: it has no training or validation files of this benchmark."""
        own = (self.folder or self.name).lower() == folder.name.lower()
        splits: Splits = {}
        for split, name in self.files.items():
            if own and (folder / name).is_dir():
                splits[split] = class_folders(folder / name)
                continue
            globs = [f"{self.name}.{name}.*"] + ([f"{name}.*"] if own else [])
            files = [path for glob in globs for path in matches(folder, glob)]
            if files:
                columns, tested = self.without_header.get(split, self.columns), split == "test"
                how = {"labels": not tested, "broken": self.broken and not tested}  # the lines of a test are numbered
                splits[split] = [one for path in files for one in examples(path, columns, **how)]
        return splits if "train" in splits or "valid" in splits else {}

    def from_hub(self) -> Splits:
        pinned = self.hub.pinned()
        named = {split: name.replace("dev", "validation") for split, name in self.files.items()}
        return {split: list(self.hub_examples(replace(pinned, split=name))) for split, name in named.items()}

    def hub_examples(self, data: DataSet) -> Iterator[Example]:
        columns = self.hub_columns
        for number, row in enumerate(data.rows(), 1):
            label: str | None = None
            if (value := row.get(columns.label)) not in (None, -1):  # GLUE's test sets have the label -1
                label = self.labels[value] if self.labels else str(value)
            pair = row[columns.pair] if columns.pair else None
            yield Example(row[columns.field], pair, label, f"row {number} of {data.name}")

    def advice(self, root: Path) -> str:
        place = root / self.suite / (self.folder or self.name)
        files = "train.tsv, dev.tsv and test.tsv" if self.suite == "glue" else "train/CLASS/ and test/CLASS/"
        return (
            f"Without a network, put its {files} into {place}, or name another folder than {root} with --data-root."
        )

    def missing(self, split: str, root: Path | None = None) -> str:
        """What to do where a part is not at hand."""
        place = data_root(root) / self.suite / (self.folder or self.name)
        file = f"{self.files[split]}.tsv" if self.suite == "glue" else f"{self.files[split]}/CLASS/"
        return f"put its {file} into {place}, or name another folder than {data_root(root)} with --data-root"


def class_folders(folder: Path) -> list[Example]:
    """The sequences of a folder per class, a file each."""
    rows = []
    for name in sorted(path for path in folder.iterdir() if path.is_dir()):
        for path in sorted(path for path in name.iterdir() if path.is_file()):
            rows.append(Example(read_text(path).strip(), None, name.name, str(path)))
    if not rows:
        raise UserError(f"{folder} holds no folders of sequences, one for each class.")
    return rows


def glue(name: str, title: str, columns: tuple[Columns, ...], rows: tuple[int, int, int], **more: Any) -> Benchmark:
    """A task of GLUE: the columns of its files and those of the hub, and the examples of each split."""
    config = str(more.pop("config", name.lower().replace("-", "")))
    counts = dict(zip(("train", "valid", "test"), rows, strict=True))
    options: dict[str, Any] = {"protocol": "glue", "published": counts, "files": PARTS, **more}
    own, hub = columns
    return Benchmark(name, title, "glue", own, DataSet(GLUE_HUB, config), hub, **options)


PARTS = {"train": "train", "valid": "dev", "test": "test"}
ONE, TWO = Columns("sentence", "", "label"), Columns("sentence1", "sentence2", "label")
ENTAILED = ("entailment", "not_entailment")
THREE = ("entailment", "neutral", "contradiction")
UNNAMED = Columns("4", "", "2")  # CoLA's columns
GLUE = (
    glue(
        "CoLA",
        "Corpus of Linguistic Acceptability: is the sentence grammatical?",
        (ONE, ONE),
        (8551, 1043, 1063),
        metrics=("matthews", "accuracy"),
        without_header={"train": UNNAMED, "valid": UNNAMED},
    ),
    glue("SST-2", "Stanford Sentiment Treebank: is the review positive?", (ONE, ONE), (67349, 872, 1821)),
    glue(
        "MRPC",
        "Microsoft Research Paraphrase Corpus: do both sentences say the same?",
        (Columns("#1 String", "#2 String", "Quality"), TWO),
        (3668, 408, 1725),
        metrics=("f1", "accuracy"),
    ),
    glue(
        "STS-B",
        "Semantic Textual Similarity: how similar are the sentences, from 0 to 5?",
        (Columns("sentence1", "sentence2", "score"), TWO),
        (5749, 1500, 1379),
        metrics=("spearman", "pearson"),
        number=True,
        bounds=(0.0, 5.0),
    ),
    glue(
        "QQP",
        "Quora Question Pairs: do both ask the same?",
        tuple(Columns("question1", "question2", label) for label in ("is_duplicate", "label")),
        (363846, 40430, 390965),
        metrics=("f1", "accuracy"),
        broken=True,
    ),
    *(
        glue(
            f"MNLI-{kind}",
            f"Multi-Genre Natural Language Inference, {kind}: does the second sentence follow from the first?",
            (Columns("sentence1", "sentence2", "gold_label"), Columns("premise", "hypothesis", "label")),
            (392702, rows, tests),
            folder="MNLI",
            files={"train": "train", "valid": f"dev_{kind}", "test": f"test_{kind}"},
            config="mnli",
            labels=THREE,
        )
        for kind, rows, tests in (("matched", 9815, 9796), ("mismatched", 9832, 9847))
    ),
    glue(
        "QNLI",
        "Question Natural Language Inference: does the sentence answer the question?",
        (Columns("question", "sentence", "label"),) * 2,
        (104743, 5463, 5463),
        labels=ENTAILED,
    ),
    glue(
        "RTE",
        "Recognizing Textual Entailment: does the second sentence follow from the first?",
        (TWO, TWO),
        (2490, 277, 3000),
        labels=ENTAILED,
    ),
    glue("WNLI", "Winograd schemas; left out of most averages", (TWO, TWO), (635, 71, 146)),
)


def genomic(name: str, train: int, test: int, length: int) -> Benchmark:
    own, hub = Columns("sequence", "", "label"), Columns("seq", "", "label")
    return Benchmark(
        *(name, "Genomic Benchmarks", "genomic_benchmarks", own, DataSet(f"{GENOMIC_HUB}{name}"), hub),
        protocol="caduceus",
        published={"train": train, "test": test},
        length=length,
    )


GENOMIC = (
    genomic("dummy_mouse_enhancers_ensembl", 968, 242, 1_024),
    genomic("demo_coding_vs_intergenomic_seqs", 75_000, 25_000, 200),
    genomic("demo_human_or_worm", 75_000, 25_000, 200),
    genomic("human_enhancers_cohn", 20_843, 6_948, 500),
    genomic("human_enhancers_ensembl", 123_872, 30_970, 512),
    genomic("human_ensembl_regulatory", 231_348, 57_713, 512),
    genomic("human_ocr_ensembl", 139_804, 34_952, 512),
    genomic("human_nontata_promoters", 27_097, 9_034, 251),
)


def plain(name: str) -> str:
    return name.lower().removeprefix("glue/").replace("-", "").replace("_", "")


BENCHMARKS: dict[str, Benchmark] = {plain(one.name): one for one in (*GLUE, *GENOMIC)}


def benchmark_of(name: str) -> Benchmark | None:
    """The benchmark of a name, however it is written (SST-2, sst2, glue/sst2); None: there is none."""
    return BENCHMARKS.get(plain(name))


def unknown_data(place: str) -> UserError:
    """What to say of data that are neither a file, a folder nor a benchmark."""
    names = [one.name for one in BENCHMARKS.values()]
    return UserError(f"there is no file or folder {place}, and {unknown('benchmark', place, names)}")


def submission(benchmark: Benchmark, answers: list[str]) -> tuple[str, str]:
    """The name and the content of the file that GLUE's server takes: a line for each test example.

    Numbers are clipped to the bounds of the task.
    """
    if benchmark.bounds is not None:
        low, high = benchmark.bounds
        answers = [f"{min(max(low, float(answer)), high):.3f}" for answer in answers]
    names = {"MNLI-matched": "MNLI-m", "MNLI-mismatched": "MNLI-mm"}
    lines = ["index\tprediction", *(f"{i}\t{answer}" for i, answer in enumerate(answers))]
    return f"{names.get(benchmark.name, benchmark.name)}.tsv", "\n".join(lines) + "\n"
