"""Each overlay is what Kubernetes takes, hangs together, and grants what the code asks for and no more."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from click.testing import CliRunner

import gpuwhy
from gpuwhy import config as configuration
from gpuwhy.cli import main
from gpuwhy.source import kubernetes_api

from . import kustomize

BUILT_IN = ("restricted", "host-evidence", "dcgm-hostengine", "dcgm-exporter")
WITH_HOST = BUILT_IN[1:]
# The oldest that knows appArmorProfile, and the newest of the package.
VERSIONS = ("1.30", kubernetes_validate.latest_version())
Object = dict[str, Any]


@pytest.fixture(scope="module")
def built(root: Path) -> dict[str, list[Object]]:
    folder = root / "deploy/kubernetes"
    found = {name: kustomize.build(folder / "overlays" / name) for name in BUILT_IN}
    return found | {"monitoring": kustomize.build(folder)}


def _the(objects: list[Object], kind: str, name: str = "") -> Object:
    (found,) = (
        each for each in objects if each["kind"] == kind and (not name or each["metadata"]["name"] == name)
    )
    return found


def _pod(objects: list[Object]) -> Object:
    return _the(objects, "DaemonSet")["spec"]["template"]["spec"]


def _agent(objects: list[Object]) -> Object:
    (found,) = _pod(objects)["containers"]
    return found


def test_every_overlay_is_tested(root: Path) -> None:
    """None is added without a line here."""
    folders = {path.name for path in (root / "deploy/kubernetes/overlays").iterdir()}
    assert folders == set(BUILT_IN)


@pytest.mark.parametrize("name", [*BUILT_IN, "monitoring"])
def test_objects_are_what_kubernetes_takes(built: dict[str, list[Object]], name: str) -> None:
    """Strictly by the schemas of the oldest and the newest version; no object twice."""
    identities = [
        (each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]) for each in built[name]
    ]
    assert len(set(identities)) == len(identities)
    for each in built[name]:
        if not each["apiVersion"].startswith("monitoring.coreos.com/"):
            for version in VERSIONS:
                kubernetes_validate.validate(each, version, strict=True)


@pytest.mark.parametrize("where", [*(f"overlays/{name}" for name in BUILT_IN), "."])
def test_kustomize_itself_builds_the_same(root: Path, where: str) -> None:
    """The small builder of these tests says what the real program says, but for the hash in names."""
    _built_by_both(root / "deploy/kubernetes" / where)


def _built_by_both(folder: Path) -> list[Object]:
    program = shutil.which("kubectl")
    if program is None:
        pytest.skip("kubectl cannot be found; remedy: put one of 1.27 or later on PATH")
    done = subprocess.run([program, "kustomize", str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    real = re.sub(r"\bgpuwhy-[a-z0-9]{10}\b", f"gpuwhy{kustomize.SUFFIX}", done.stdout)

    def in_order(objects: Iterator[Object]) -> list[str]:
        return sorted(json.dumps(_sorted(each), sort_keys=True) for each in objects)

    small = kustomize.build(folder)
    assert in_order(yaml.safe_load_all(real)) == in_order(iter(small))
    return small


def _sorted(value: Any) -> Any:
    """With lists whose order is of no matter in one order."""
    if isinstance(value, dict):
        return {key: _sorted(each) for key, each in value.items()}
    if isinstance(value, list):
        each = [_sorted(item) for item in value]
        named = all(isinstance(item, dict) and item.keys() & {"name", "mountPath"} for item in each)
        return sorted(each, key=lambda item: json.dumps(item, sort_keys=True)) if named else each
    return value


@pytest.mark.parametrize("name", BUILT_IN)
def test_selectors_match_and_ports_have_names(built: dict[str, list[Object]], name: str) -> None:
    """DaemonSet, Service and PodMonitor mean the same pods, and a port that those have."""
    objects = built[name]
    daemons = _the(objects, "DaemonSet")
    labels = daemons["spec"]["template"]["metadata"]["labels"].items()
    service, monitor = _the(objects, "Service", "gpuwhy"), _the(built["monitoring"], "PodMonitor")
    assert daemons["spec"]["selector"]["matchLabels"].items() <= labels
    assert service["spec"]["selector"].items() <= labels
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels
    assert monitor["spec"]["jobLabel"] in dict(labels)
    ports = {port["name"]: port["containerPort"] for port in _agent(objects)["ports"]}
    assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports.keys()
    assert {end["port"] for end in monitor["spec"]["podMetricsEndpoints"]} <= ports.keys()
    probes = [probe for key, probe in _agent(objects).items() if key.endswith("Probe")]
    assert len(probes) == 3
    assert {probe["httpGet"]["port"] for probe in probes} <= ports.keys()
    assert service["spec"]["clusterIP"] == "None"
    assert _pod(objects)["enableServiceLinks"] is False
    place = daemons["metadata"]["namespace"]
    assert {service["metadata"]["namespace"], monitor["metadata"]["namespace"]} == {place}
    assert _the(objects, "Namespace")["metadata"]["name"] == place


def test_hosts_are_called_by_their_nodes_names(built: dict[str, list[Object]]) -> None:
    """What all alerts and dashboards tell hosts apart by stays when a pod is replaced."""
    (end,) = _the(built["monitoring"], "PodMonitor")["spec"]["podMetricsEndpoints"]
    (relabelling,) = end["relabelings"]
    assert relabelling["sourceLabels"] == ["__meta_kubernetes_pod_node_name"]
    assert relabelling["targetLabel"] == "instance"
    assert "honorLabels" not in end


def test_the_rules_are_those_of_the_operators_shape(built: dict[str, list[Object]]) -> None:
    """Groups with names, rules with an expression and either an alert's name or a recorded one's."""
    groups = _the(built["monitoring"], "PrometheusRule")["spec"]["groups"]
    assert groups
    for rule in (rule for group in groups for rule in group["rules"]):
        assert ("alert" in rule) != ("record" in rule)
        assert isinstance(rule["expr"], str)


@pytest.mark.parametrize("name", BUILT_IN)
def test_volumes_and_mounts_fit(built: dict[str, list[Object]], name: str) -> None:
    """Every volume is mounted and every mount has a volume; of the host only history may be written."""
    pod = _pod(built[name])
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    mounts = [
        mount
        for each in kustomize.containers(_the(built[name], "DaemonSet"))
        for mount in each["volumeMounts"]
    ]
    assert {mount["name"] for mount in mounts} == volumes.keys()
    maps = {each["metadata"]["name"] for each in built[name] if each["kind"] == "ConfigMap"}
    assert {volume["configMap"]["name"] for volume in volumes.values() if "configMap" in volume} == maps
    writable = {mount["name"] for mount in mounts if not mount.get("readOnly")}
    of_host = {key for key, volume in volumes.items() if "hostPath" in volume}
    assert writable & of_host <= {"history"}
    for mount in mounts:
        if mount["name"] in of_host - {"history"}:
            assert mount["mountPath"] == f"/host{volumes[mount['name']]['hostPath']['path']}"


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_configuration_passes_its_own_check(
    built: dict[str, list[Object]], name: str, tmp_path: Path
) -> None:
    """With the environment of the pod; paths that it names are mounted ones."""
    agent = _agent(built[name])
    (flag, file) = agent["args"][1:]
    assert agent["args"][0] == "run"
    assert flag == "--config"
    (text,) = _the(built[name], "ConfigMap")["data"].values()
    (tmp_path / Path(file).name).write_text(text)
    environ = {each["name"]: each.get("value") for each in agent["env"]}
    assert all(re.fullmatch(r"[A-Z][A-Z0-9_]*", each) for each in environ)
    done = CliRunner().invoke(
        main, ["check-config", "--config", str(tmp_path / Path(file).name)], env=environ
    )
    assert done.exit_code == 0, done.output
    mounted = {mount["mountPath"] for mount in agent["volumeMounts"]}
    assert str(Path(file).parent) in mounted
    said = yaml.safe_load(text)
    assert str(Path(said["store"]["path"]).parent) in mounted
    root = said.get("agent", {}).get("host_root")
    assert any(path.startswith("/host/") for path in mounted) == (root == "/host")
    for key in ("dcgm_bindings", "dcgm_library"):
        if path := said.get("agent", {}).get(key):
            assert str(Path(path).parent) in mounted


def test_a_wrong_configuration_would_not_pass(tmp_path: Path) -> None:
    """The check above can fail."""
    (tmp_path / "config.yaml").write_text("agent: {host_rot: /host}\n")
    done = CliRunner().invoke(main, ["check-config", "--config", str(tmp_path / "config.yaml")])
    assert done.exit_code == 2


@pytest.mark.parametrize("name", BUILT_IN)
def test_images_have_their_tags(built: dict[str, list[Object]], name: str) -> None:
    """Ours is the version of this tree; none is `latest`."""
    assert _agent(built[name])["image"] == f"gpuwhy:{gpuwhy.__version__}"
    for each in kustomize.containers(_the(built[name], "DaemonSet")):
        assert re.search(r":\d[\w.-]*$", each["image"])


@pytest.mark.parametrize("name", WITH_HOST)
def test_rights_are_those_that_the_code_asks_for(built: dict[str, list[Object]], name: str) -> None:
    """The rule is the one that the source names to who lacks it, and is bound to the account of the pod."""
    (rule,) = _the(built[name], "ClusterRole")["rules"]
    asked = re.search(r"\{.*\}", kubernetes_api._RULE)
    assert asked is not None
    assert rule == yaml.safe_load(asked.group())
    binding = _the(built[name], "ClusterRoleBinding")
    (subject,) = binding["subjects"]
    account = _the(built[name], "ServiceAccount")["metadata"]
    assert (subject["name"], subject["namespace"]) == (account["name"], account["namespace"])
    assert binding["roleRef"]["name"] == _the(built[name], "ClusterRole")["metadata"]["name"]
    assert _pod(built[name])["serviceAccountName"] == account["name"]
    assert _pod(built[name])["automountServiceAccountToken"] is True
    assert any(each["name"] == "NODE_NAME" for each in _agent(built[name])["env"])


@pytest.mark.parametrize("name", BUILT_IN)
def test_no_overlay_has_more_than_it_needs(built: dict[str, list[Object]], name: str) -> None:
    """No GPU is claimed, nothing is privileged, the root file system is read-only, all capabilities are dropped."""
    pod = _pod(built[name])
    assert not pod.get("hostNetwork")
    assert not pod.get("hostIPC")
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for each in kustomize.containers(_the(built[name], "DaemonSet")):
        assert not any("nvidia.com/" in key for part in each["resources"].values() for key in part)
        context = each["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["readOnlyRootFilesystem"] is True
        assert context["capabilities"]["drop"] == ["ALL"]
        assert not context.get("privileged")
    added = _agent(built[name])["securityContext"]["capabilities"].get("add", [])
    if name in WITH_HOST:
        assert pod["hostPID"] is True
        assert added == ["DAC_READ_SEARCH", "SYS_PTRACE"]


def test_restricted_is_what_its_name_says(built: dict[str, list[Object]]) -> None:
    """Pod Security level `restricted`: no root, no host, no token, and no right to ask the API server."""
    objects = built["restricted"]
    pod = _pod(objects)
    level = "pod-security.kubernetes.io/enforce"
    assert _the(objects, "Namespace")["metadata"]["labels"][level] == "restricted"
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert not any(key in pod for key in ("hostPID", "hostNetwork", "hostIPC"))
    assert all(volume.keys() & {"configMap", "emptyDir"} for volume in pod["volumes"])
    assert pod["automountServiceAccountToken"] is False
    assert "add" not in _agent(objects)["securityContext"]["capabilities"]
    assert not {each["kind"] for each in objects} & {
        "ClusterRole",
        "ClusterRoleBinding",
        "Role",
        "RoleBinding",
    }


def test_what_stands_beside_is_asked_on_the_same_node(built: dict[str, list[Object]]) -> None:
    """Address and Service of the exporter fit, and it never leads to another host's GPUs."""
    objects = built["dcgm-exporter"]
    service = _the(objects, "Service", "gpuwhy-dcgm-exporter")
    (text,) = _the(objects, "ConfigMap")["data"].values()
    place = f"{service['metadata']['name']}.{service['metadata']['namespace']}.svc"
    (port,) = service["spec"]["ports"]
    assert yaml.safe_load(text)["agent"]["exporter_url"] == f"http://{place}:{port['port']}/metrics"
    assert service["spec"]["internalTrafficPolicy"] == "Local"


def test_patches_of_the_page_fit(root: Path, built: dict[str, list[Object]]) -> None:
    """Each patch that docs/kubernetes.md shows goes onto every overlay, and Kubernetes takes the outcome."""
    page = (root / "docs/kubernetes.md").read_text()
    shown = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)]
    patches = [each for each in shown if each["kind"] == "DaemonSet"]
    assert len(patches) == 3
    assert len(patches) + len(_kustomizations(page)) == len(shown)
    for patch in patches:
        for name in BUILT_IN:
            target = _the(built[name], "DaemonSet")
            changed = kustomize.merged(target, patch)
            kubernetes_validate.validate(changed, VERSIONS[0], strict=True)
            volumes = {volume["name"] for volume in changed["spec"]["template"]["spec"]["volumes"]}
            assert {mount["name"] for mount in _agent([changed])["volumeMounts"]} <= volumes
            assert len(_agent([changed])["env"]) >= len(_agent([target])["env"])


def _kustomizations(page: str) -> list[str]:
    blocks = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    return [text for text in blocks if yaml.safe_load(text)["kind"] == "Kustomization"]


@pytest.fixture
def beside_a_clone(root: Path, tmp_path: Path) -> list[Path]:
    """A folder for each kustomization that docs/kubernetes.md shows, as the page has one make it."""
    folders = []
    for number, text in enumerate(_kustomizations((root / "docs/kubernetes.md").read_text())):
        folders.append(tmp_path / str(number))
        shutil.copytree(root / "deploy/kubernetes", folders[-1] / "gpuwhy/deploy/kubernetes")
        (folders[-1] / "kustomization.yaml").write_text(text)
    return folders


def test_kustomizations_of_the_page(beside_a_clone: list[Path]) -> None:
    """Both give the image of one's registry with the tag of this version, and Kubernetes takes what they make."""
    ours, alone = (kustomize.build(folder) for folder in beside_a_clone)
    for objects in (ours, alone):
        assert _agent(objects)["image"] == f"registry.example/gpuwhy:{gpuwhy.__version__}"
        for each in objects:
            if not each["apiVersion"].startswith("monitoring.coreos.com/"):
                kubernetes_validate.validate(each, VERSIONS[0], strict=True)
    assert {each["kind"] for each in ours} >= {"DaemonSet", "PodMonitor", "PrometheusRule"}


def test_an_exporter_by_itself_is_asked(beside_a_clone: list[Path], tmp_path: Path) -> None:
    """Service and address are in its namespace, by the label of its chart, and the operator's are gone."""
    objects = kustomize.build(beside_a_clone[1])
    service = _the(objects, "Service", "gpuwhy-dcgm-exporter")
    assert service["spec"]["selector"] == {"app.kubernetes.io/name": "dcgm-exporter"}
    environ = {each["name"]: each.get("value") for each in _agent(objects)["env"]}
    (text,) = _the(objects, "ConfigMap")["data"].values()
    (tmp_path / "config.yaml").write_text(text)
    read = {name: value for name, value in environ.items() if value is not None}
    told = configuration.load({}, read, tmp_path / "config.yaml").config.agent.exporter_url
    (port,) = service["spec"]["ports"]
    place = f"{service['metadata']['name']}.{service['metadata']['namespace']}.svc"
    assert told == f"http://{place}:{port['port']}/metrics"
    assert "gpu-operator" not in place


@pytest.mark.parametrize("number", [0, 1])
def test_kustomize_itself_builds_those_of_the_page(beside_a_clone: list[Path], number: int) -> None:
    """The real program takes what the page shows, and makes the same of it."""
    _built_by_both(beside_a_clone[number])


@pytest.mark.parametrize("name", WITH_HOST)
def test_a_version_without_the_field_of_apparmor(
    root: Path, built: dict[str, list[Object]], name: str
) -> None:
    """An older version refuses the field, and takes what the page's patch makes of it."""
    page = (root / "docs/kubernetes.md").read_text()
    shown = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)]
    (patch,) = (each for each in shown if "apparmor" in str(each))
    target = _the(built[name], "DaemonSet")
    with pytest.raises(kubernetes_validate.ValidationError, match="appArmorProfile"):
        kubernetes_validate.validate(target, "1.29", strict=True)
    changed = kustomize.merged(target, patch)
    kubernetes_validate.validate(changed, "1.29", strict=True)
    (annotation,) = changed["spec"]["template"]["metadata"]["annotations"]
    assert annotation.endswith(f"/{_agent([changed])['name']}")
