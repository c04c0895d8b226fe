"""Pods and their GPUs, from all that knows of them: kubelet, API server, and the host's own folders."""

from gpuwhy.source.kubelet import DRA_DRIVER, Grant, Kubelet
from gpuwhy.source.kubernetes_api import KubernetesApi, node_name
from gpuwhy.source.pods import Pod, PodFolders, pod_uids

__all__ = ["DRA_DRIVER", "Grant", "Kubelet", "KubernetesApi", "Pod", "PodFolders", "node_name", "pod_uids"]
