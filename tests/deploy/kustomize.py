"""What kustomize makes of a folder, for tests without it: the part that deploy/kubernetes uses, and nothing else.

Resources, patches (strategic merges, and replacements of JSON patches), names and tags of images, ConfigMaps from files (named ``NAME-built`` in place
of a hash) and a namespace. Anything else in a kustomization raises.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

Object = dict[str, Any]
SUFFIX = "-built"

_KNOWN = {
    "apiVersion",
    "kind",
    "namespace",
    "resources",
    "patches",
    "images",
    "configMapGenerator",
}
_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "volumeMounts": "mountPath",
}
_WITHOUT_NAMESPACE = {"Namespace", "PriorityClass", "ClusterRole", "ClusterRoleBinding"}


def build(folder: Path) -> list[Object]:
    """The objects that ``kubectl apply -k folder`` applies, in no promised order."""
    objects, maps = _gather(folder)
    objects += maps.values()
    for each in objects:
        for reference in _references(each):
            if reference.get("name") in maps:
                reference["name"] += SUFFIX
    for each in maps.values():
        each["metadata"]["name"] += SUFFIX
    return objects


def _gather(folder: Path) -> tuple[list[Object], dict[str, Object]]:
    said = yaml.safe_load((folder / "kustomization.yaml").read_text())
    if said.keys() - _KNOWN:
        raise ValueError(f"{folder}: not understood here: {said.keys() - _KNOWN}")
    objects: list[Object] = []
    maps: dict[str, Object] = {}
    for name in said["resources"]:
        path = folder / name
        if path.is_dir():
            below, below_maps = _gather(path)
            objects, maps = objects + below, maps | below_maps
        else:
            objects += yaml.safe_load_all(path.read_text())
    for patch in said.get("patches", ()):
        text = patch["patch"] if "patch" in patch else (folder / patch["path"]).read_text()
        (change,) = yaml.safe_load_all(text)
        if isinstance(change, list):
            (target,) = (each for each in objects if _chosen(each, patch["target"]))
            for operation in change:
                _replace(target, **operation)
            continue
        (target,) = (each for each in objects if _identity(each) == _identity(change))
        objects[objects.index(target)] = merged(target, change)
    for generator in said.get("configMapGenerator", ()):
        if (generator["name"] in maps) != (generator.get("behavior") == "replace"):
            raise ValueError(f"{folder}: ConfigMap {generator['name']} twice, or nothing to replace")
        maps[generator["name"]] = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": generator["name"], "namespace": generator["namespace"]},
            "data": {name: (folder / name).read_text() for name in generator["files"]},
        }
    images = {image["name"]: image for image in said.get("images", ())}
    for each in objects:
        for container in containers(each):
            name, _, tag = container["image"].partition(":")
            if new := images.get(name):
                container["image"] = f"{new.get('newName', name)}:{new.get('newTag', tag)}"
        if "namespace" in said and each["kind"] not in _WITHOUT_NAMESPACE:
            each["metadata"]["namespace"] = said["namespace"]
    return objects, maps


def containers(each: Object) -> Iterator[Object]:
    """Of a workload, those that start included."""
    pod = each.get("spec", {}).get("template", {}).get("spec", {}) if each["kind"] == "DaemonSet" else {}
    yield from pod.get("initContainers", ())
    yield from pod.get("containers", ())


def _identity(each: Object) -> tuple[str, str, str, str]:
    metadata = each["metadata"]
    return each["apiVersion"], each["kind"], metadata["name"], metadata.get("namespace", "")


def _chosen(each: Object, target: Object) -> bool:
    return (each["kind"], each["metadata"]["name"]) == (target["kind"], target["name"])


def _replace(each: Object, *, op: str, path: str, value: Any) -> None:
    *above, last = path.strip("/").split("/")
    for key in above:
        each = each[key]
    if op != "replace" or last not in each:
        raise ValueError(f"{op} {path}: not understood here")
    each[last] = value


def _references(each: Object) -> Iterator[Object]:
    if each["kind"] == "DaemonSet":
        for volume in each["spec"]["template"]["spec"].get("volumes", ()):
            if "configMap" in volume:
                yield volume["configMap"]


def merged(base: Any, change: Any, name: str = "") -> Any:
    """``base`` with a strategic merge patch; null takes a key away."""
    if isinstance(base, dict) and isinstance(change, dict):
        kept = {key: copy.deepcopy(value) for key, value in base.items() if change.get(key, "") is not None}
        for key, value in change.items():
            if value is not None:
                kept[key] = merged(kept.get(key), value, key)
        return kept
    if isinstance(base, list) and isinstance(change, list) and name in _KEYS:
        key = _KEYS[name]
        by_key = {item[key]: item for item in copy.deepcopy(base)}
        for item in change:
            by_key[item[key]] = merged(by_key.get(item[key]), item)
        return list(by_key.values())
    if isinstance(change, dict):
        return {key: value for key, value in copy.deepcopy(change).items() if value is not None}
    return copy.deepcopy(change)
