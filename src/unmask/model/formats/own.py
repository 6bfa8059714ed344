"""Our layout: config.json and model.safetensors, in the published layout where it supports the network; unmask.json.

unmask.json records the training (objective, step, EMA, settings, version, the tokenizer's fingerprint), the sha256 of
the weights and a self-test. Version 1 stored only the name of the objective; its fields were among the settings.
Version 3 stores the layout of its rows too; of an older file it follows from the settings.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, get_type_hints

from unmask.diffusion.objective import OBJECTIVES, Objective
from unmask.errors import UserError
from unmask.model.backbone import BACKBONES, Spec
from unmask.model.backbones.transformer import Architecture
from unmask.model.format import FORMATS, Contents, Files, Format
from unmask.model.formats.official import architecture_of, config_of, mask_of
from unmask.settings import fit_type, merge_settings
from unmask.text.layout import LAYOUTS, Layout

KIND = "unmask"  # model_type of a network that the published layout does not support


@FORMATS.register("unmask", "ours, with a self-test")
class Own(Format):
    """A folder with unmask.json."""

    def matches(self, files: Files) -> bool:
        return bool(files.note) and files.kind in (None, KIND, "mdlm")

    def read(self, files: Files) -> Contents:
        config, note = files.config, files.note
        settings = note.get("settings", {})
        objective = objective_from(note["objective"], settings)
        if config.get("model_type") == KIND:
            spec: Spec = spec_from(config)
        else:
            spec = architecture_of(config, files.tensors)
        return Contents(spec, mask_of(config, spec), objective, settings, layout=layout_from(note.get("layout")))

    def config(self, spec: Spec, objective: Objective, *, mask: int, dtype: str) -> dict[str, Any]:
        if isinstance(spec, Architecture):
            return config_of(spec, mask=mask, dtype=dtype)
        values = {one.name: getattr(spec, one.name) for one in fields(spec)}
        return {
            "model_type": KIND,
            "backbone": {"name": spec.name, **values},
            "vocab_size": spec.vocab,
            "mask_index": mask,
            "torch_dtype": dtype,
        }


def spec_from(config: Mapping[str, Any]) -> Spec:
    table = config.get("backbone")
    if not isinstance(table, Mapping) or not isinstance(table.get("name"), str):
        raise UserError("config.json has no table 'backbone' with a name, so the kind of network is unknown.")
    kind = BACKBONES[table["name"]]
    hints = get_type_hints(kind)
    known = {one.name for one in fields(kind)}
    values = {name: value for name, value in table.items() if name != "name"}
    for name in values.keys() - known:
        raise UserError(f"config.json gives the backbone {table['name']!r} a {name!r:.60}, which it does not have.")
    values = {name: fit_type(value, hints[name], f"config.json: {name}") for name, value in values.items()}
    try:
        return kind(**values)
    except TypeError as error:
        raise UserError(f"config.json does not describe a {table['name']} network: {error}.") from None


def objective_from(table: Any, settings: Mapping[str, Any]) -> Objective:
    """The objective in unmask.json: a table with all of its fields, or, in version 1, a name."""
    if isinstance(table, str):
        table = from_version_1(table, settings.get("objective"))
    if not isinstance(table, Mapping) or not isinstance(table.get("name"), str):
        raise UserError(f"unmask.json does not say which objective the network was trained with; it says {table!r}.")
    values = {name: value for name, value in table.items() if name != "name"}
    return merge_settings(OBJECTIVES.entry(table["name"]).make(), values, "objective")


def layout_from(table: Any) -> Layout | None:
    """The layout in unmask.json: a table with all of its fields; None: an older file has none."""
    if table is None:
        return None
    if not isinstance(table, Mapping) or not isinstance(table.get("name"), str):
        raise UserError(
            f"unmask.json does not say how the rows of the training were laid out; it says {table!r:.60}."
        )
    values = {name: value for name, value in table.items() if name != "name"}
    return merge_settings(LAYOUTS.entry(table["name"]).make(), values, "layout")


def from_version_1(name: str, trained: Any) -> dict[str, Any]:
    """The fields of a version 1 file: one flat table of settings for all objectives, in which T belonged to d3pm."""
    fields: dict[str, Any] = {"name": name}
    if not isinstance(trained, Mapping) or trained.get("name") != name or name == "ar":
        return fields
    schedule = trained.get("schedule", "log-linear")
    fields["schedule"] = "log-linear:eps=0" if (name, schedule) == ("d3pm", "log-linear") else schedule
    if name == "d3pm":
        fields["steps"] = trained.get("steps", 1000)
    times = trained.get("times", "count")
    if times == "bell":
        bell = {key: trained[f"bell_{key}"] for key in ("mean", "spread", "floor") if f"bell_{key}" in trained}
        fields["times"] = "bell:" + ",".join(f"{key}={value}" for key, value in bell.items())
    elif times == "count" and name == "mdlm":
        fields["times"] = "count"
    else:
        fields["times"] = f"stratified:low={trained.get('low', 0.0)}"
    if name == "mdlm":
        fields["weight"] = trained.get("weight", "bound")
    return fields
