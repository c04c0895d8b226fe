"""Prometheus, Alertmanager and Grafana as shipped: each file is taken by its program, and they agree with each other."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuwhy.config import Config, RenderConfig
from gpuwhy.render import alerts

PROMETHEUS = Path("deploy/prometheus")
ALERTMANAGER = Path("deploy/alertmanager/alertmanager.yml")
GRAFANA = Path("deploy/grafana/provisioning")
VARIANTS = ("prometheus.yml", "prometheus-tls.yml")
REMEDY = "`make test` fetches it where apt-get works, or put it on PATH"

# Keys that Grafana's documentation of provisioning names; others it drops without a word.
DATASOURCE = {
    "name",
    "type",
    "access",
    "orgId",
    "uid",
    "url",
    "isDefault",
    "editable",
    "jsonData",
    "secureJsonData",
}
PROVIDER = {
    *("name", "orgId", "folder", "folderUid", "type", "options"),
    *("disableDeletion", "updateIntervalSeconds", "allowUiUpdates"),
}


def loaded(file: Path) -> Any:
    return yaml.safe_load(file.read_text())


@pytest.fixture(scope="module")
def amtool(require_program: Callable[[str, str], str]) -> str:
    return require_program("amtool", REMEDY)


@pytest.fixture
def copied(root: Path, tmp_path: Path) -> Path:
    """A configuration folder of Prometheus, filled as deploy/README.md says."""
    shutil.copytree(root / PROMETHEUS, tmp_path, dirs_exist_ok=True)
    for file in (root / "alerts").glob("*.rules.yaml"):
        shutil.copy(file, tmp_path / "gpuwhy")
    for name in ("ca.pem", "client.pem", "client.key", "password"):
        (tmp_path / "gpuwhy" / name).touch()
    return tmp_path


def said(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def typed(root: Path, folder: Path) -> list[str]:
    """The blocks that deploy/README.md has one type, for a host whose /etc and /var are in ``folder``."""
    _, part = (root / "deploy/README.md").read_text().split("\n## Prometheus, Alertmanager and Grafana")
    blocks = re.findall(r"^```\n(.*?)^```", part, re.DOTALL | re.MULTILINE)
    assert len(blocks) == 3
    return [f"cd {root}\n" + re.sub(r"(?<= )/(etc|var)/", rf"{folder}/\1/", block) for block in blocks]


def test_the_readme_leads_there(root: Path, tmp_path: Path, promtool: str, amtool: str) -> None:
    """What deploy/README.md has one type leaves all programs with files that they take, on a host that has none."""
    for block in typed(root, tmp_path):
        commands = re.sub(r"^promtool ", f"{promtool} ", block, flags=re.MULTILINE)
        said("sh", "-ec", re.sub(r"^amtool ", f"{amtool} ", commands, flags=re.MULTILINE))
    (provider,) = loaded(tmp_path / "etc/grafana/provisioning/dashboards/gpuwhy.yaml")["providers"]
    boards = list((tmp_path / provider["options"]["path"].lstrip("/")).iterdir())
    assert len(boards) == len(list((root / "dashboards").glob("*.json")))


def test_the_readme_replaces_nothing(root: Path, tmp_path: Path) -> None:
    """A Prometheus, Alertmanager and Grafana that work are as before, whichever block is typed; so is a list of hosts."""
    theirs = (
        *("etc/prometheus/prometheus.yml", "etc/prometheus/alertmanager.yml", "etc/prometheus/rules.yml"),
        "etc/prometheus/gpuwhy/targets/hosts.yaml",
        *(f"etc/grafana/provisioning/{kind}/own.yaml" for kind in ("dashboards", "datasources")),
        "etc/grafana/provisioning/datasources/gpuwhy.yaml",
    )
    for name in theirs:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("theirs")
    anywhere, whole, _ = typed(root, tmp_path)
    for block in (anywhere, whole):  # some cp -n end with 1 where they keep a file
        subprocess.run(["sh", "-c", block], capture_output=True, check=False)
    assert all((tmp_path / name).read_text() == "theirs" for name in theirs)
    assert (tmp_path / "etc/prometheus/gpuwhy/alerts.rules.yaml").exists()


@pytest.mark.parametrize("variant", VARIANTS)
def test_prometheus_takes_it(copied: Path, promtool: str, variant: str) -> None:
    """With the files that it names beside it, Prometheus finds nothing wrong, and both files of rules."""
    assert said(promtool, "check", "config", copied / variant).count("rules found") == 2


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(
    ("target", "instance"),
    [
        ({"targets": ["gpu-a01:9837"]}, "gpu-a01"),
        ({"targets": ["gpu-a01.example.com"]}, "gpu-a01.example.com"),
        ({"targets": ["[2001:db8::7]:9837"]}, "2001:db8::7"),
        ({"targets": ["192.0.2.7:9837"], "labels": {"instance": "gpu-b01"}}, "gpu-b01"),
    ],
)
def test_a_host_is_called_by_its_name(
    copied: Path, promtool: str, variant: str, target: dict[str, Any], instance: str
) -> None:
    """`instance` is the host without a port, which stays when the port changes, or the name that was given."""
    config = loaded(copied / variant)
    (job,) = config["scrape_configs"]
    del job["file_sd_configs"]
    job["static_configs"] = [target]
    (copied / "asked.yml").write_text(yaml.safe_dump(config))
    out = said(promtool, "check", "service-discovery", "--timeout=1s", copied / "asked.yml", job["job_name"])
    (found,) = json.loads(out[out.index("[") :])
    assert found["labels"]["instance"] == instance


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_example_of_hosts_is_read(copied: Path, variant: str) -> None:
    """The file of targets lies where the configurations look, and names the port that agents have."""
    (job,) = loaded(copied / variant)["scrape_configs"]
    (pattern,) = job["file_sd_configs"][0]["files"]
    port = Config().http.listen.rpartition(":")[2]
    groups = [group for file in copied.glob(pattern) for group in loaded(file)]
    assert groups
    assert all(address.endswith(f":{port}") for group in groups for address in group["targets"])


def test_the_two_ways_differ_in_the_locks_alone(root: Path) -> None:
    """What stands in one of the files and not in the other is how agents are asked."""
    plain, locked = (loaded(root / PROMETHEUS / name) for name in VARIANTS)
    (open_job,), (locked_job,) = plain.pop("scrape_configs"), locked.pop("scrape_configs")
    assert plain == locked
    assert not {"scheme", "tls_config", "basic_auth"} & set(open_job)
    assert locked_job.pop("scheme") == "https"
    for only in ("tls_config", "basic_auth"):
        locked_job.pop(only)
    assert open_job == locked_job


def test_every_rendered_rule_file_is_loaded_in_order(root: Path) -> None:
    """Recording rules come first; no rendered file of rules is left out."""
    named = [Path(each).name for each in loaded(root / PROMETHEUS / "prometheus.yml")["rule_files"]]
    assert named[0] == "recording.rules.yaml"
    assert sorted(named) == sorted(file.name for file in (root / "alerts").glob("*.rules.yaml"))


def test_alertmanager_takes_it(root: Path, amtool: str) -> None:
    """Alertmanager finds nothing wrong."""
    assert "SUCCESS" in said(amtool, "check-config", root / ALERTMANAGER)


def test_inhibition_is_what_is_rendered(root: Path, pytestconfig: pytest.Config) -> None:
    """Alertmanager has no include, so its file ends with alerts/inhibit.yaml; `make golden` puts it there."""
    file = root / ALERTMANAGER
    head, key, rest = file.read_text().partition("\ninhibit_rules:\n")
    rendered = alerts.inhibitions(RenderConfig()).partition("inhibit_rules:\n")[2]
    if pytestconfig.getoption("--update"):
        file.write_text(f"{head}{key}{rendered}")
        return
    assert rest == rendered, "`make golden` rewrites it; review the diff"
    assert loaded(file)["inhibit_rules"] == loaded(root / "alerts/inhibit.yaml")["inhibit_rules"]


RECEIVER = {"critical": "pager", "warning": "working-hours", "info": "nobody"}


@pytest.mark.parametrize("severity", sorted({alert.severity for alert in alerts.ALERTS}))
def test_alerts_go_by_severity(root: Path, amtool: str, severity: str) -> None:
    """Each severity that alerts have has its receiver."""
    name = next(alert.name for alert in alerts.ALERTS if alert.severity == severity)
    test = (amtool, "config", "routes", "test", "--config.file", root / ALERTMANAGER)
    assert said(*test, f"alertname={name}", f"severity={severity}").strip() == RECEIVER[severity]


def test_alerts_of_others_are_not_dropped(root: Path, amtool: str) -> None:
    """One file for a whole Alertmanager must not send to nobody what is not gpuwhy's."""
    test = (amtool, "config", "routes", "test", "--config.file", root / ALERTMANAGER)
    assert said(*test, "alertname=DiskFull", "severity=info").strip() == "working-hours"


def test_eight_gpus_of_a_host_are_one_message(root: Path) -> None:
    """Alerts are grouped by what all GPUs of a host have in common."""
    (route,) = loaded(root / ALERTMANAGER)["route"]["routes"]
    assert route["group_by"] == ["alertname", RenderConfig().host_label, "cluster"]
    assert all(re.search(route["matchers"][0].split('"')[1], alert.name) for alert in alerts.ALERTS)


def test_grafana_gets_keys_that_it_knows(root: Path) -> None:
    """Both files have the shape of Grafana's documentation."""
    sources = loaded(root / GRAFANA / "datasources/gpuwhy.yaml")
    providers = loaded(root / GRAFANA / "dashboards/gpuwhy.yaml")
    assert (set(sources), set(providers)) == ({"apiVersion", "datasources"}, {"apiVersion", "providers"})
    assert sources["apiVersion"] == providers["apiVersion"] == 1
    (source,), (provider,) = sources["datasources"], providers["providers"]
    assert set(source) <= DATASOURCE
    assert set(provider) <= PROVIDER
    assert (provider["type"], set(provider["options"])) == ("file", {"path"})
    # Two files that both name the default one keep Grafana from starting.
    assert source["isDefault"] is False


def test_the_dashboards_find_the_data_source(root: Path) -> None:
    """Every dashboard lets one choose among data sources of the provisioned one's type, and asks no other."""
    (source,) = loaded(root / GRAFANA / "datasources/gpuwhy.yaml")["datasources"]
    for file in sorted((root / "dashboards").glob("*.json")):
        board = json.loads(file.read_text())
        (variable,) = (each for each in board["templating"]["list"] if each["type"] == "datasource")
        assert variable["query"] == source["type"], file.name
        asked = {
            (each["type"], each["uid"]) for panel in board["panels"] if (each := panel.get("datasource"))
        }
        assert asked <= {(source["type"], f"${{{variable['name']}}}")}, file.name


def test_grafana_knows_how_often_prometheus_scrapes(root: Path) -> None:
    """Rates look back four scrapes, which takes the same interval in both files; it is one that rules can use."""
    (source,) = loaded(root / GRAFANA / "datasources/gpuwhy.yaml")["datasources"]
    every = loaded(root / PROMETHEUS / "prometheus.yml")["global"]["scrape_interval"]
    assert source["jsonData"]["timeInterval"] == every
    shortest = min(alert.window_s for alert in alerts.ALERTS if alert.window_s)
    assert shortest >= 10 * int(every.removesuffix("s"))


def test_the_readme_of_the_dashboards_says_the_same(root: Path) -> None:
    """What dashboards/README.md has one type is part of the provisioned file."""
    (block,) = re.findall(r"```yaml\n(.*?)```", (root / "dashboards/README.md").read_text(), re.DOTALL)
    (shown,) = yaml.safe_load(block)["providers"]
    (provider,) = loaded(root / GRAFANA / "dashboards/gpuwhy.yaml")["providers"]
    assert shown.items() <= provider.items()
