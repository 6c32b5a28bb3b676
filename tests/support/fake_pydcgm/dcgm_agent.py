"""The functions of NVIDIA's bindings, as far as gpuguard calls them itself."""

import json
import os
from types import SimpleNamespace

import dcgm_structs


def dcgmGetGpuInstanceHierarchy(dcgm_handle):
    with open(os.environ["FAKE_DCGM"], encoding="utf-8") as file:
        instances = json.load(file).get("instances")
    if instances is None:
        raise dcgm_structs.DCGMError_NotSupported("Feature not supported")
    pair = SimpleNamespace
    listed = [
        pair(
            entity=pair(entityGroupId=4, entityId=number),
            parent=pair(entityGroupId=1, entityId=one["gpu"]),
            info=pair(nvmlInstanceId=one["id"]),
        )
        for number, one in enumerate(instances)
    ]
    # Behind them compute instances, which have no fields of their own, and the rest of a fixed array.
    compute = pair(entity=pair(entityGroupId=5, entityId=0), parent=pair(entityGroupId=4, entityId=0), info=None)
    return pair(count=len(listed) + 1, entityList=[*listed, compute, *[None] * 5])
