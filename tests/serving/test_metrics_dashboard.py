"""What deploy/ says of the server is true of the server."""

import json
import re
from pathlib import Path

import yaml

from unmask.serving.metrics import Metrics

HERE = Path(__file__).parents[2] / "deploy"


def test_every_metric_of_the_dashboard_is_one_of_the_server():
    metrics = Metrics()
    metrics.answered("/v1/completions", 200, 0.5)  # a metric with labels appears with its first value
    served = set(re.findall(r"^(unmask_\w+)[ {]", metrics.text().decode(), re.MULTILINE))
    panels = json.loads((HERE / "dashboard.json").read_text())["panels"]
    asked = {name for panel in panels for one in panel["targets"] for name in re.findall(r"unmask_\w+", one["expr"])}
    assert len(asked) >= 8
    assert asked <= served


def test_the_balancer_and_prometheus_know_every_replica():
    services = yaml.safe_load((HERE / "compose.yaml").read_text())["services"]
    replicas = {f"{name}:8000" for name in services if name.startswith("replica")}
    assert len(replicas) == 2
    assert set(re.findall(r"server (\S+:\d+)", (HERE / "nginx.conf").read_text())) == replicas
    scraped = yaml.safe_load((HERE / "prometheus.yaml").read_text())["scrape_configs"][0]["static_configs"]
    assert set(scraped[0]["targets"]) == replicas
    mounted = [volume.split(":")[0] for one in services.values() for volume in one.get("volumes", [])]
    assert mounted
    assert all((HERE / path).is_file() for path in mounted)
