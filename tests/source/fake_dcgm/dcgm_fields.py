"""Stands for a module of NVIDIA's bindings that the others import. Names of fields warn, as from DCGM 4.6 on."""

import warnings

import dcgm_structs  # noqa: F401  as NVIDIA's does

DCGM_FT_BINARY, DCGM_FT_DOUBLE, DCGM_FT_INT64, DCGM_FT_STRING, DCGM_FT_TIMESTAMP = (
    ord(kind) for kind in "bdist"
)
DCGM_FE_NONE, DCGM_FE_GPU, DCGM_FE_VGPU, DCGM_FE_SWITCH, DCGM_FE_GPU_I, DCGM_FE_GPU_CI = range(6)


def __getattr__(name):
    if name.startswith("DCGM_FI_"):
        warnings.warn(f"{name} is deprecated", DeprecationWarning, stacklevel=2)
        return 0
    raise AttributeError(name)
