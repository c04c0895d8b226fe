"""Pods: named after what made them, so that the name stays when pods come and go.

The API server says what made a pod; where it is not asked, the shape of the pod's name does. Shapes
mislead at times ("llama-3" might be the fourth of a StatefulSet), so labels and owners go before them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from gpuwhy.sample import Tenant, Workload
from gpuwhy.source.identity import Identity
from gpuwhy.source.kubernetes import DRA_DRIVER, Grant, Pod, pod_uids
from gpuwhy.workload.tables import PROFILES, UNNAMED, Key, Row, Tables

KIND = "kubernetes"

# Labels that name what a pod belongs to better than its direct owner does, outermost first. "" = the kind
# of the owner, or of the label beside it.
_NAMED_BY = (
    ("serving.kserve.io/inferenceservice", "InferenceService"),
    ("serving.knative.dev/service", "Service"),
    ("ray.io/originated-from-cr-name", ""),
    ("leaderworkerset.sigs.k8s.io/name", "LeaderWorkerSet"),
    ("jobset.sigs.k8s.io/jobset-name", "JobSet"),
    ("training.kubeflow.org/job-name", ""),
    ("volcano.sh/job-name", "Job"),
    ("workflows.argoproj.io/cron-workflow", "CronWorkflow"),
    ("workflows.argoproj.io/workflow", "Workflow"),
)
_TEMPLATE_HASHES = (("pod-template-hash", "Deployment"), ("rollouts-pod-template-hash", "Rollout"))
# What is made anew for each run, often under a generated name; what minted it, where a clock did.
_RUNS = frozenset({"JobSet", "PipelineRun", "RayCluster", "TaskRun", "Workflow"})
_MINTED = {"Job": "CronJob", "Workflow": "CronWorkflow"}

# Kubernetes' random suffixes are of these letters, and its template hashes of the ten among them that
# stand for decimal digits.
_ANY = "[bcdfghjklmnpqrstvwxz2456789]{5}"
_HASH = "[456789bcdf]"
_INDEX = r"(?:0|[1-9]\d{0,3})"
# Model names have such ends too: 8x22b, nvfp4, gptq4, t5xxl, and all digits.
_NO_SUFFIX = re.compile(r"\d+|\d+x\d+[a-z]?|\d+[bgkmt]b?|(?:mx|nv)fp\d|gptq\d|t5xxl")
_SUFFIX = re.compile(rf"(.+)-({_ANY})")
_REPLICA = re.compile(rf"(.+)-{_HASH}{{8,10}}-{_ANY}")
_REVISION = re.compile(r"(.+)-\d{5}-deployment")  # of Knative, one for each change
_INDEXED = re.compile(rf"(.+)-{_INDEX}")
_ROLE = re.compile(rf"(.+)-(?:master|worker|chief|ps|evaluator|launcher)-(?:{_INDEX}|{_ANY})")
_CLOCK = re.compile(r"(.+)-(\d{8}|\d{10})")
# Times of a CronJob's runs, 2015 to 2033: minutes now, seconds before Kubernetes 1.21. People write dates
# (20260131, 2026013112) after names, which lie outside.
_TIMES = {8: range(23_667_840, 33_333_334), 10: range(1_420_070_400, 2_000_000_000)}
_LONGEST, _LONGEST_STEM = 63, 58  # of a generated name, and of what is before its random end

_REPLICATED = re.compile(r"(.+)::\d{1,6}")
_VIRTUAL = re.compile(r"(.+)/vgpu\d{1,4}")
_BY_MINOR = re.compile(r"nvidia(\d{1,3})(?:/gi(\d{1,3}))?")
_OLD_MIG = re.compile(r"MIG-(GPU-[^/]+)/(\d{1,3})/\d{1,3}")
_DRA = re.compile(r"gpu-(\d{1,3})(-mig-.+)?")


def tenant(identity: Identity, tables: Tables) -> Tenant | None:
    """The pod that the process is in, None = it is in none."""
    uids = [uid for path in identity.cgroups for uid in pod_uids(path)]
    if not uids:
        return None
    # What a pod names inside of itself is its own.
    pod = tables.pods.get(uids[0])
    return Tenant(Workload(KIND, UNNAMED), run=uids[0], waits=True) if pod is None else _of(pod, tables)


def is_in_pod(identity: Identity) -> bool:
    """Whether some pod's control group holds the process."""
    return any(map(pod_uids, identity.cgroups))


def holder(pod: str, tables: Tables) -> Tenant:
    """The pod that a source names, as "namespace/pod"."""
    namespace, _, name = pod.rpartition("/")
    found = _best(each for each in tables.pods.values() if (each.namespace, each.name) == (namespace, name))
    return _of(found or Pod("", namespace, name), tables)


def joined(tables: Tables) -> Tables:
    """The tables with pods from both who know them: what the API server says, and which live by the host."""
    pods = dict(tables.folders)
    for uid, pod in tables.pods.items():
        shown = tables.folders.get(uid)
        pods[uid] = pod if shown is None else replace(pod, live=shown.live)
    return replace(tables, pods=pods)


def _of(pod: Pod, tables: Tables) -> Tenant:
    _, name = controller(pod, tables.node)
    owner = pod.labels.get(tables.owner_label) or pod.namespace
    profile, hint = _profile(pod, tables.profile_label)
    return Tenant(Workload(KIND, name, pod.namespace, owner), run=pod.name, profile=profile, hint=hint)


def _profile(pod: Pod, name: str) -> tuple[str, str]:
    for where, said in (("annotation", pod.annotations), ("label", pod.labels)):
        if said.get(name) in PROFILES:
            return said[name], f"pod {where} {name}"
    return "", ""


# --- names


def controller(pod: Pod, node: str) -> tuple[str, str]:
    """The kind and name of what stands behind a pod, the kind "" where it cannot be told.

    ``node`` is this host's name, with which the names of pods from files end.
    """
    kind, name = pod.controller_kind, pod.controller_name
    if not kind or not name:
        return _by_shape(pod.name, node)
    for label, named in _NAMED_BY:
        if pod.labels.get(label):
            kind, name = named or pod.labels.get("ray.io/originated-from-crd") or kind, pod.labels[label]
            break
    if kind == "ReplicaSet":
        for label, made in _TEMPLATE_HASHES:
            stem = name.removesuffix(f"-{pod.labels.get(label)}")
            if stem not in {name, ""}:
                return made, stem
    if kind == "Node":  # which owns what the kubelet made from files
        return "Pod", pod.name.removesuffix(f"-{name}") or pod.name
    if kind in _MINTED and (minted := _before_time(name)):
        return _MINTED[kind], minted
    if kind in _RUNS or kind.endswith("Job"):
        return kind, _before_suffix(name) or name
    return kind, name


def _by_shape(name: str, node: str) -> tuple[str, str]:
    """Goes by the pod's own name, the most telling shapes first."""
    if node and (stem := name.removesuffix(f"-{node}")) not in {name, ""}:
        return "Pod", stem
    if match := _REPLICA.fullmatch(name):
        revision = _REVISION.fullmatch(match[1])
        return ("Service", revision[1]) if revision else ("Deployment", match[1])
    if match := _ROLE.fullmatch(name):
        return "", match[1]
    if stem := _before_suffix(name):
        index = _INDEXED.fullmatch(stem)
        if minted := _before_time(index[1] if index else stem) or _before_time(stem):
            return "CronJob", minted
        return ("Job", index[1]) if index else ("", stem)
    if len(name) == _LONGEST and re.fullmatch(_ANY, name[_LONGEST_STEM:]):
        # The stem was cut, in the middle of a template hash as a rule.
        cut = re.fullmatch(rf"(.+)-{_HASH}{{0,10}}", name[:_LONGEST_STEM])
        return ("Deployment", cut[1]) if cut else ("", name[:_LONGEST_STEM])
    if match := _INDEXED.fullmatch(name):
        return "StatefulSet", match[1]
    return "", name


def _before_suffix(name: str) -> str:
    match = _SUFFIX.fullmatch(name)
    return "" if match is None or _NO_SUFFIX.fullmatch(match[2]) else match[1]


def _before_time(name: str) -> str:
    match = _CLOCK.fullmatch(name)
    return match[1] if match and int(match[2]) in _TIMES[len(match[2])] else ""


# --- grants


def grants(tables: Tables, rows: Sequence[Row]) -> dict[Key, tuple[Tenant, ...]]:
    """The pods that hold each GPU or MIG instance by the kubelet's word, ordered by name.

    Pods that have ended do not count, though the kubelet may list them. Of several that hold a device
    which is not shared, those count of which most is known to say that they live. A device that cannot
    be told for sure is nobody's.
    """
    devices = _Devices(rows)
    pods: dict[tuple[str, str], list[Pod]] = {}
    for pod in tables.pods.values():
        pods.setdefault((pod.namespace, pod.name), []).append(pod)
    held: dict[Key, dict[tuple[str, str], tuple[Pod, bool]]] = {}
    for grant in tables.grants:
        named = (grant.namespace, grant.pod)
        pod = _best(pods.get(named, ())) or Pod("", grant.namespace, grant.pod)
        if pod.lives is False:
            continue
        for key, shared in devices.found(grant):
            held.setdefault(key, {})[named] = (pod, shared)
    return {
        key: tuple(_of(pod, tables) for _, pod in sorted(_holding(claims).items()))
        for key, claims in held.items()
    }


def _holding(claims: Mapping[tuple[str, str], tuple[Pod, bool]]) -> dict[tuple[str, str], Pod]:
    surely = any(pod.lives for pod, _ in claims.values())
    return {name: pod for name, (pod, shared) in claims.items() if shared or pod.lives or not surely}


def _best(pods: Iterable[Pod]) -> Pod | None:
    """Of pods of one name, the one that lives: a StatefulSet's pods are made anew under their old names."""
    return max(pods, key=lambda pod: {True: 2, None: 1, False: 0}[pod.lives], default=None)


class _Devices:
    """Rows by all names under which devices are granted."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._keys = {row.key for row in rows}
        self._split = {uuid for uuid, mig in self._keys if mig}
        self._by_device = {device: row.key for row in rows for device in row.devices}
        self._minors: dict[int, set[str]] = {}
        self._indices: dict[int, set[str]] = {}
        for row in rows:
            self._indices.setdefault(row.index, set()).add(row.key[0])
            if row.minor is not None:
                self._minors.setdefault(row.minor, set()).add(row.key[0])

    def found(self, grant: Grant) -> Iterator[tuple[Key, bool]]:
        """The rows of a grant, and whether others may hold the same device beside it."""
        for device in grant.device_ids:
            if grant.resource == DRA_DRIVER:
                key, shared = self._claimed(device), True
            else:
                plain = device
                for part in (_REPLICATED, _VIRTUAL):
                    match = part.fullmatch(plain)
                    plain = match[1] if match else plain
                key, shared = self._plain(plain), plain != device
            if key is not None:
                yield key, shared

    def _plain(self, device: str) -> Key | None:
        if device in self._by_device:
            return self._by_device[device]
        if match := _OLD_MIG.fullmatch(device):
            return self._known(match[1], str(int(match[2])))
        if match := _BY_MINOR.fullmatch(device):
            return self._known(_only(self._minors.get(int(match[1]))), str(int(match[2])) if match[2] else "")
        return self._known(device, "")

    def _claimed(self, device: str) -> Key | None:
        """By the names of NVIDIA's DRA driver, which has numbered by index and, later, by device file."""
        match = _DRA.fullmatch(device)
        if match is None:
            return None
        number = int(match[1])
        uuid = _only(self._minors.get(number))
        if not uuid or self._indices.get(number, {uuid}) != {uuid}:
            return None
        if not match[2]:
            return self._known(uuid, "")
        # The name has an instance's profile and place, not its id.
        instances = [key for key in self._keys if key[0] == uuid and key[1]]
        return instances[0] if len(instances) == 1 else None

    def _known(self, uuid: str, mig: str) -> Key | None:
        """The row, None = there is none, or it is a board that is split, of which nobody has the whole."""
        return (uuid, mig) if (uuid, mig) in self._keys and (mig or uuid not in self._split) else None


def _only(uuids: set[str] | None) -> str:
    return next(iter(uuids)) if uuids and len(uuids) == 1 else ""
