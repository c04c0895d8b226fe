"""Stands for NVIDIA's module of structures and errors; the library behind it is a ``FakeEngine``."""

# ruff: noqa: N801, N802, N816, PLW0603  named as NVIDIA's are
import ctypes
import os
import platform

import dcgmvalue  # noqa: F401  as NVIDIA's does
import libdcgm

VERSION = libdcgm.engine.version if libdcgm.engine else 4  # of DCGM
DCGM_MAX_STR_LENGTH = 256

globals().update({f"DCGM_ST_{name}": value for name, value in libdcgm.codes.items()})

dcgmLib = None


class DCGMError(Exception):
    def __init__(self, value):
        super().__init__(value)
        self.value = value


def _dcgmInit(libDcgmPath=None):  # noqa: N803
    """Looks for the library where NVIDIA's does; a ``FakeEngine`` says in which folder it lies."""
    global dcgmLib
    folders = [libDcgmPath, *os.environ.get("LD_LIBRARY_PATH", "").split(":")]
    folders += [f"/usr/lib/{platform.machine()}-linux-gnu", "/usr/lib64"]
    if dcgmLib is None:
        if libdcgm.engine is None or libdcgm.engine.library not in folders:
            raise DCGMError(libdcgm.codes["LIBRARY_NOT_FOUND"])
        dcgmLib = libdcgm.engine


def _dcgmCheckReturn(ret):
    if ret:
        raise DCGMError(ret)


class c_dcgmConnectV2Params_v2(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_uint),
        ("persistAfterDisconnect", ctypes.c_uint),
        ("timeoutMs", ctypes.c_uint),
        ("addressIsUnixSocket", ctypes.c_uint),
    ]


c_dcgmConnectV2Params_version = ctypes.sizeof(c_dcgmConnectV2Params_v2) | (2 << 24)


class c_dcgmGroupEntityPair_t(ctypes.Structure):
    _fields_ = [("entityGroupId", ctypes.c_uint32), ("entityId", ctypes.c_uint32)]


class c_dcgmMigEntityInfo_t(ctypes.Structure):
    _fields_ = [
        ("gpuUuid", ctypes.c_char * 128),
        ("nvmlGpuIndex", ctypes.c_uint),
        ("nvmlInstanceId", ctypes.c_uint),
        ("nvmlComputeInstanceId", ctypes.c_uint),
        ("nvmlMigProfileId", ctypes.c_uint),
        ("nvmlProfileSlices", ctypes.c_uint),
    ]


class c_dcgmMigHierarchyInfo_v2(ctypes.Structure):
    _fields_ = [
        ("entity", c_dcgmGroupEntityPair_t),
        ("parent", c_dcgmGroupEntityPair_t),
        ("info", c_dcgmMigEntityInfo_t),
    ]


class c_dcgmMigHierarchy_v2(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_uint),
        ("count", ctypes.c_uint),
        ("entityList", c_dcgmMigHierarchyInfo_v2 * (32 * 14)),
    ]


class c_dcgmDevicePowerLimits_v1(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_uint),
        ("curPowerLimit", ctypes.c_uint),
        ("defaultPowerLimit", ctypes.c_uint),
        ("enforcedPowerLimit", ctypes.c_uint),
        ("minPowerLimit", ctypes.c_uint),
        ("maxPowerLimit", ctypes.c_uint),
    ]


class c_dcgmDeviceIdentifiers_v1(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_uint),
        ("brandName", ctypes.c_char * DCGM_MAX_STR_LENGTH),
        ("deviceName", ctypes.c_char * DCGM_MAX_STR_LENGTH),
        ("pciBusId", ctypes.c_char * DCGM_MAX_STR_LENGTH),
        ("serial", ctypes.c_char * DCGM_MAX_STR_LENGTH),
        ("uuid", ctypes.c_char * DCGM_MAX_STR_LENGTH),
        ("vbios", ctypes.c_char * DCGM_MAX_STR_LENGTH),
        ("inforomImageVersion", ctypes.c_char * DCGM_MAX_STR_LENGTH),
        ("pciDeviceId", ctypes.c_uint32),
        ("pciSubSystemId", ctypes.c_uint32),
        ("driverVersion", ctypes.c_char * DCGM_MAX_STR_LENGTH),
        ("virtualizationMode", ctypes.c_uint32),
    ]


class c_dcgmDeviceSettings_v2(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_uint),
        ("persistenceModeEnabled", ctypes.c_uint),
        ("migModeEnabled", ctypes.c_uint),
        ("confidentialComputeMode", ctypes.c_uint),
    ]


class c_dcgmDeviceAttributes_v3(ctypes.Structure):
    # Without what nobody here reads.
    _fields_ = [
        ("version", ctypes.c_uint),
        ("powerLimits", c_dcgmDevicePowerLimits_v1),
        ("identifiers", c_dcgmDeviceIdentifiers_v1),
        ("settings", c_dcgmDeviceSettings_v2),
    ]


class c_dcgmFieldValue_v1_value(ctypes.Union):
    _fields_ = [
        ("i64", ctypes.c_int64),
        ("dbl", ctypes.c_double),
        ("str", ctypes.c_char * DCGM_MAX_STR_LENGTH),
        ("blob", ctypes.c_byte * 4096),
    ]


class c_dcgmFieldValue_v2(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_uint),
        ("entityGroupId", ctypes.c_uint),
        ("entityId", ctypes.c_uint),
        ("fieldId", ctypes.c_ushort),
        ("fieldType", ctypes.c_short),
        ("status", ctypes.c_int),
        ("unused", ctypes.c_uint),
        ("ts", ctypes.c_int64),
        ("value", c_dcgmFieldValue_v1_value),
    ]


class c_dcgmVersionInfo_v2(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("rawBuildInfoString", ctypes.c_char * 512)]
