"""Stands for NVIDIA's module of functions: each makes its structures, and asks a ``FakeEngine``."""

# ruff: noqa: N802, N803, PLR0917  named as NVIDIA's are
import ctypes

import dcgm_fields  # noqa: F401  as NVIDIA's does
import dcgm_structs


def _ask(function, *arguments):
    if dcgm_structs.dcgmLib is None:
        raise dcgm_structs.DCGMError(dcgm_structs.DCGM_ST_UNINITIALIZED)
    dcgm_structs._dcgmCheckReturn(dcgm_structs.dcgmLib.called(function, arguments))


def dcgmInit():
    _ask("dcgmInit")


def dcgmVersionInfo():
    info = dcgm_structs.c_dcgmVersionInfo_v2()
    _ask("dcgmVersionInfo", info)
    return info


def dcgmConnect_v2(ip_address, connectParams, version=dcgm_structs.c_dcgmConnectV2Params_version):
    connectParams.version = version
    handle = ctypes.c_void_p()
    _ask("dcgmConnect_v2", ip_address, connectParams, handle)
    return handle


def dcgmStartEmbedded(opMode):
    handle = ctypes.c_void_p()
    _ask("dcgmStartEmbedded", opMode, handle)
    return handle


def dcgmDisconnect(dcgm_handle):
    _ask("dcgmDisconnect", dcgm_handle)


def dcgmStopEmbedded(dcgm_handle):
    _ask("dcgmStopEmbedded", dcgm_handle)


def dcgmGetAllDevices(dcgm_handle):
    gpus = []
    _ask("dcgmGetAllDevices", dcgm_handle, gpus)
    return gpus


def dcgmGetAllSupportedDevices(dcgm_handle):
    gpus = []
    _ask("dcgmGetAllSupportedDevices", dcgm_handle, gpus)
    return gpus


def dcgmGetDeviceAttributes(dcgm_handle, gpuId):
    attributes = dcgm_structs.c_dcgmDeviceAttributes_v3()
    _ask("dcgmGetDeviceAttributes", dcgm_handle, gpuId, attributes)
    return attributes


def dcgmGetEntityGroupEntities(dcgm_handle, entityGroup, flags):
    entities = []
    _ask("dcgmGetEntityGroupEntities", dcgm_handle, entityGroup, flags, entities)
    return entities


def dcgmGetGpuInstanceHierarchy(dcgm_handle):
    hierarchy = dcgm_structs.c_dcgmMigHierarchy_v2()
    _ask("dcgmGetGpuInstanceHierarchy", dcgm_handle, hierarchy)
    return hierarchy


def dcgmGroupCreate(dcgm_handle, type, groupName):  # noqa: A002
    group = ctypes.c_void_p()
    _ask("dcgmGroupCreate", dcgm_handle, type, groupName, group)
    return group


def dcgmGroupAddEntity(dcgm_handle, group_id, entityGroupId, entityId):
    _ask("dcgmGroupAddEntity", dcgm_handle, group_id, entityGroupId, entityId)


def dcgmGroupDestroy(dcgm_handle, group_id):
    _ask("dcgmGroupDestroy", dcgm_handle, group_id)


def dcgmFieldGroupCreate(dcgm_handle, fieldIds, fieldGroupName):
    field_group = ctypes.c_void_p()
    _ask("dcgmFieldGroupCreate", dcgm_handle, fieldIds, fieldGroupName, field_group)
    return field_group


def dcgmFieldGroupDestroy(dcgm_handle, fieldGroupId):
    _ask("dcgmFieldGroupDestroy", dcgm_handle, fieldGroupId)


def dcgmWatchFields(dcgm_handle, groupId, fieldGroupId, updateFreq, maxKeepAge, maxKeepSamples):
    _ask("dcgmWatchFields", dcgm_handle, groupId, fieldGroupId, updateFreq, maxKeepAge, maxKeepSamples)


def dcgmUnwatchFields(dcgm_handle, groupId, fieldGroupId):
    _ask("dcgmUnwatchFields", dcgm_handle, groupId, fieldGroupId)


def dcgmUpdateAllFields(dcgm_handle, waitForUpdate):
    _ask("dcgmUpdateAllFields", dcgm_handle, waitForUpdate)


def dcgmEntitiesGetLatestValues(dcgmHandle, entities, fieldIds, flags):
    values = (dcgm_structs.c_dcgmFieldValue_v2 * (len(entities) * len(fieldIds)))()
    _ask("dcgmEntitiesGetLatestValues", dcgmHandle, entities, fieldIds, flags, values)
    return values


if dcgm_structs.VERSION >= 4:

    def dcgmGetGpuStatus(dcgm_handle, gpuId):
        status = ctypes.c_uint()
        _ask("dcgmGetGpuStatus", dcgm_handle, gpuId, status)
        return status.value
