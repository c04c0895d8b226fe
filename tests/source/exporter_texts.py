"""Texts as dcgm-exporter writes them, through its versions and ways to run it. All invented.

``@ENERGY@`` stands for the energy counter of the first GPU, so that a test can make values new.
"""

from __future__ import annotations

A = "GPU-aaaaaaaa-0000-1111-2222-333333333333"
B = "GPU-bbbbbbbb-0000-1111-2222-333333333333"

# What every text of VERSIONS says, in the raw names of ``dcgm_fields``.
VALUES = {
    A: {
        "DCGM_FI_DEV_SM_CLOCK": 1980,
        "DCGM_FI_DEV_POWER_USAGE": 612.437,
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": 1_000_000_007,
        "DCGM_FI_DEV_GPU_UTIL": 97,
        "DCGM_FI_PROF_DRAM_ACTIVE": 0.412776,
        "DCGM_FI_PROF_PCIE_TX_BYTES": 1_310_720,
    },
    B: {
        "DCGM_FI_DEV_SM_CLOCK": 345,
        "DCGM_FI_DEV_POWER_USAGE": 74.1,
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": 55_000,
        "DCGM_FI_DEV_GPU_UTIL": 0,
        "DCGM_FI_PROF_DRAM_ACTIVE": 0.0,
        "DCGM_FI_PROF_PCIE_TX_BYTES": 2048,
    },
}

# name, TYPE as the counters files of the time had it, value of A, value of B
SERIES = (
    ("DCGM_FI_DEV_SM_CLOCK", "gauge", "1980", "345"),
    ("DCGM_FI_DEV_POWER_USAGE", "gauge", "612.437000", "74.100000"),
    ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "counter", "@ENERGY@", "55000"),
    ("DCGM_FI_DEV_GPU_UTIL", "gauge", "97", "0"),
    ("DCGM_FI_DEV_XID_ERRORS", "gauge", "31", "0"),
    ("DCGM_FI_PROF_DRAM_ACTIVE", "gauge", "0.412776", "0.000000"),
    ("DCGM_FI_PROF_PCIE_TX_BYTES", "counter", "1310720", "2048"),
)
RENAMED = {
    "DCGM_FI_DEV_POWER_USAGE": "DCGM_FI_DEV_BOARD_POWER_WATTS",
    "DCGM_FI_DEV_GPU_UTIL": "DCGM_FI_DEV_GPU_UTIL_RATIO",
    "DCGM_FI_PROF_DRAM_ACTIVE": "DCGM_FI_PROF_DRAM_UTIL_RATIO",
}


def page(labels_a: str, labels_b: str, *, names: dict[str, str] | None = None, tail: str = "") -> str:
    """A whole text of two GPUs."""
    lines = []
    for name, kind, a, b in SERIES:
        shown = (names or {}).get(name, name)
        lines += [
            f"# HELP {shown} what it says.",
            f"# TYPE {shown} {kind}",
            f"{shown}{{{labels_a}}} {a}",
            f"{shown}{{{labels_b}}} {b}",
        ]
    return "\n".join(lines) + "\n" + tail


H200 = 'modelName="NVIDIA H200"'
VERSIONS = {
    "2.6, no pods": page(
        f'gpu="0",UUID="{A}",device="nvidia0",{H200},Hostname="node-7"',
        f'gpu="1",UUID="{B}",device="nvidia1",{H200},Hostname="node-7"',
    ),
    "3.1, in Kubernetes, one GPU free": page(
        f'gpu="0",UUID="{A}",device="nvidia0",{H200},Hostname="node-7",container="main",namespace="ml",pod="llm-0"',
        f'gpu="1",UUID="{B}",device="nvidia1",{H200},Hostname="node-7",container="",namespace="",pod=""',
    ),
    "3.4, old namespace": page(
        f'gpu="0",uuid="{A}",device="nvidia0",{H200},container_name="main",pod_name="llm-0",pod_namespace="ml"',
        f'gpu="1",uuid="{B}",device="nvidia1",{H200}',
    ),
    "3.5, PCI addresses": page(
        f'gpu="0",UUID="{A}",pci_bus_id="00000000:19:00.0",device="nvidia0",{H200},Hostname="node-7",pod="llm-0",namespace="ml"',
        f'gpu="1",UUID="{B}",pci_bus_id="00000000:9D:00.0",device="nvidia1",{H200},Hostname="node-7"',
    ),
    "4.8, driver's version, pod labels": page(
        f'gpu="0",UUID="{A}",pci_bus_id="00000000:19:00.0",device="nvidia0",{H200},Hostname="node-7",'
        'DCGM_FI_DRIVER_VERSION="575.51.03",app="llm",uuid="of the pod, not of the GPU",'
        'container="main",namespace="ml",pod="llm-0",pod_uid="0b1c"',
        f'gpu="1",UUID="{B}",pci_bus_id="00000000:9D:00.0",device="nvidia1",{H200},Hostname="node-7",'
        'DCGM_FI_DRIVER_VERSION="575.51.03"',
        tail="""# HELP DCGM_EXP_CLOCK_EVENTS_COUNT events of the last minutes.
# TYPE DCGM_EXP_CLOCK_EVENTS_COUNT gauge
DCGM_EXP_CLOCK_EVENTS_COUNT{gpu="0",UUID="x",clock_event="gpu_idle",window_size_in_ms="300000"} 3
# HELP DCGM_FI_DEV_NVSWITCH_TEMPERATURE_CURRENT of a switch.
# TYPE DCGM_FI_DEV_NVSWITCH_TEMPERATURE_CURRENT gauge
DCGM_FI_DEV_NVSWITCH_TEMPERATURE_CURRENT{nvswitch="nvswitch0",Hostname="node-7"} 41
# HELP DCGM_FI_PROF_NVLINK_TX_BYTES of one link.
# TYPE DCGM_FI_PROF_NVLINK_TX_BYTES gauge
DCGM_FI_PROF_NVLINK_TX_BYTES{nvlink="3",gpu="0",gpu_uuid="@A@",hostname="node-7"} 7
""".replace("@A@", A),
    ),
    "after 4.8, host name in lower case, names of DCGM 4.6": page(
        f'gpu="0",UUID="{A}",pci_bus_id="00000000:19:00.0",device="nvidia0",{H200},hostname="node-7",namespace="ml",pod="llm-0"',
        f'gpu="1",UUID="{B}",pci_bus_id="00000000:9D:00.0",device="nvidia1",{H200},hostname="node-7"',
        names=RENAMED,
    ),
    "through another Prometheus": page(
        f'UUID="{A}",device="nvidia0",exported_namespace="ml",exported_pod="llm-0",gpu="0",instance="10.0.0.7:9400",'
        f'job="dcgm",{H200},namespace="gpu-operator",pod="nvidia-dcgm-exporter-x7" ',
        f'UUID="{B}",device="nvidia1",gpu="1",instance="10.0.0.7:9400",job="dcgm",{H200}',
    ).replace("612.437000", "612.437 1796032187342"),
}


def _instance(
    number: int, profile: str, gpu: int = 0, uuid: str = A, model: str = "NVIDIA A100-SXM4-80GB"
) -> str:
    return (
        f'gpu="{gpu}",UUID="{uuid}",pci_bus_id="00000000:19:00.0",device="nvidia{gpu}",modelName="{model}",'
        f'GPU_I_PROFILE="{profile}",GPU_I_ID="{number}",Hostname="node-7"'
    )


def mig(*profiles: str, model: str = "NVIDIA A100-SXM4-80GB", board: bool = False) -> str:
    """A board in MIG mode: GPU instances 2, 3 and so on, each with the board's values repeated.

    ``board``: the exporter was told to give the board besides (``-d g,i``).
    """
    lines = []
    for place, profile in enumerate(profiles):
        labels = _instance(place + 2, profile, model=model)
        lines += [
            f"DCGM_FI_DEV_POWER_USAGE{{{labels}}} 250.500000",
            f"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{{labels}}} @ENERGY@",
            f"DCGM_FI_DEV_FB_USED{{{labels}}} {1000 * (place + 1)}",
            f"DCGM_FI_PROF_GR_ENGINE_ACTIVE{{{labels}}} 0.{place + 1}00000",
        ]
    if board:
        labels = f'gpu="0",UUID="{A}",pci_bus_id="00000000:19:00.0",device="nvidia0",modelName="{model}"'
        lines += [
            f"DCGM_FI_DEV_POWER_USAGE{{{labels}}} 251.000000",
            f"DCGM_FI_DEV_FB_USED{{{labels}}} 9999",
            f"DCGM_FI_PROF_GR_ENGINE_ACTIVE{{{labels}}} 0.990000",
        ]
    return "\n".join(lines) + "\n"


_SHARED = f'gpu="0",UUID="{A}",device="nvidia0",{H200},Hostname="node-7"'
_ONE = 'container="main",namespace="ml",pod="llm-0",vgpu="0"'
_TWO = 'container="main",namespace="ml",pod="llm-1",vgpu="1"'

# Time-slicing: every series once for each pod that shares the GPU.
SHARED_OLD = f"""DCGM_FI_DEV_GPU_UTIL{{{_SHARED},{_ONE}}} 80
DCGM_FI_DEV_GPU_UTIL{{{_SHARED},{_TWO}}} 80
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{{_SHARED},{_ONE}}} @ENERGY@
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{{_SHARED},{_TWO}}} @ENERGY@
DCGM_FI_DEV_FB_USED{{{_SHARED},{_ONE}}} 5000
DCGM_FI_DEV_FB_USED{{{_SHARED},{_TWO}}} 5000
"""
# The same since early 2026: two of them have the pods' own parts beside the whole GPU's.
SHARED_NEW = f"""DCGM_FI_DEV_GPU_UTIL{{{_SHARED}}} 80
DCGM_FI_DEV_GPU_UTIL{{{_SHARED},{_ONE}}} 95
DCGM_FI_DEV_GPU_UTIL{{{_SHARED},{_TWO}}} 0
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{{_SHARED},{_ONE}}} @ENERGY@
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{{_SHARED},{_TWO}}} @ENERGY@
DCGM_FI_DEV_FB_USED{{{_SHARED}}} 5000
DCGM_FI_DEV_FB_USED{{{_SHARED},{_ONE}}} 3000
DCGM_FI_DEV_FB_USED{{{_SHARED},{_TWO}}} 1500
"""
JOBS = f"""DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{{_SHARED},hpc_job="4711"}} @ENERGY@
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{{_SHARED},hpc_job="4712"}} @ENERGY@
"""
