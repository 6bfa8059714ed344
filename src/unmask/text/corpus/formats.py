"""Formats: the content of a data file by the ending of its name; a compressed file has two (stories.jsonl.gz)."""

FORMATS = {
    "txt": "text",
    "jsonl": "jsonl",
    "ndjson": "jsonl",
    "json": "jsonl",
    "csv": "csv",
    "tsv": "csv",
    "parquet": "parquet",
    "fasta": "fasta",
    "fa": "fasta",
    "fna": "fasta",
    "faa": "fasta",
    "smi": "smiles",
    "smiles": "smiles",
}
COMPRESSIONS = ("gz", "xz", "zst")


def format_of(name: str) -> tuple[str | None, str]:
    """A file name's format (None if its ending says nothing) and its ending, without the compression.

    >>> format_of("stories.TSV.gz")
    ('csv', 'tsv')
    """
    parts = name.lower().split(".")
    if parts[-1] in COMPRESSIONS:
        parts.pop()
    ending = parts[-1] if len(parts) > 1 else ""
    return FORMATS.get(ending), ending
