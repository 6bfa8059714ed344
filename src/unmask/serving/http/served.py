"""What a server answers for: a model, and adapters over it, chosen by the name of a request's `model`."""

from collections.abc import Mapping
from dataclasses import dataclass

from unmask.errors import UserError, unknown
from unmask.model.adapter_files import with_adapter
from unmask.model.checkpoint import find
from unmask.model.model import Model
from unmask.serving.http.requests import Controls, Requests
from unmask.serving.refusal import wrong
from unmask.serving.settings import ServerSettings


@dataclass(frozen=True)
class Served:
    """The models of a server by name, the base first."""

    name: str  # of the base, which is meant where a request gives no name
    models: Mapping[str, Requests]

    @property
    def base(self) -> Requests:
        return self.models[self.name]

    def named(self, asked: str) -> tuple[str, Requests]:
        name = asked or self.name
        if name not in self.models:
            known = str(unknown("model", asked[:80], self.models))
            raise wrong(known, param="model", status=404, code="model_not_found")
        return name, self.models[name]


def served_models(model: Model, settings: ServerSettings) -> Served:
    """A model and its adapters, each over the same weights in memory."""
    if settings.name in settings.adapters:
        raise UserError(f"--adapter {settings.name}=... has the name of the base: give it another, or set --name.")
    limits = settings.limits
    served = {settings.name: Requests(model, limits, Controls(model, limits, settings.classifier))}
    for name, folder in settings.adapters.items():
        adapted = with_adapter(model, find(folder)[0], apart=True)
        served[name] = Requests(adapted, limits, Controls(adapted, limits))
    return Served(settings.name, served)
