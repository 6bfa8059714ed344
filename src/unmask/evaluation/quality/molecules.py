"""Molecules: how many SMILES are valid, distinct and new, by rdkit."""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from unmask.errors import UserError


def assess_molecules(samples: Sequence[str], training: Sequence[str]) -> dict[str, Any]:
    """The share of SMILES that are valid, of valid ones that are distinct, and of those that are not in the training
    text, by their canonical form."""
    try:
        chem, log = import_module("rdkit.Chem"), import_module("rdkit.RDLogger")
    except ImportError:
        raise UserError("--molecules checks SMILES with rdkit, which is not installed: pip install rdkit") from None
    log.DisableLog("rdApp.*")

    def canonical(text: str) -> str | None:
        molecule = chem.MolFromSmiles(text) if text else None
        return None if molecule is None else chem.MolToSmiles(molecule)

    valid = [one for one in map(canonical, samples) if one is not None]
    distinct, known = set(valid), {canonical(text) for text in training}
    return {
        "valid": len(valid) / max(1, len(samples)),
        "distinct": len(distinct) / max(1, len(valid)),
        "new": len(distinct - known) / max(1, len(distinct)) if training else None,
    }
