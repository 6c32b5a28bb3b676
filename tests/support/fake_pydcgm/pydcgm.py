"""NVIDIA's bindings as far as gpuguard uses them, over a story instead of a host engine.

The file that FAKE_DCGM names is JSON: `version` 3 or 4, `gpus` (each with pci, uuid and values by number of the field),
`instances` of MIG (each with gpu, id and values), `blank` numbers, `age` of the values in seconds, and `trouble`: hang,
crash, disconnected, refused, no_profiling, profiling_lost or few_counters. Version 3 returns names as bytes and knows
no reserved memory.
"""

import json
import os
import time
from types import SimpleNamespace

import dcgm_fields
import dcgm_structs


def story():
    with open(os.environ["FAKE_DCGM"], encoding="utf-8") as file:
        return json.load(file)


class DcgmException(Exception):
    pass


class DcgmHandle:
    def __init__(self, handle=None, ipAddress=None, unixSocketPath=None, timeoutMs=0):
        # Without an address the real one starts an engine in this process, which must never happen.
        assert (ipAddress is None) != (unixSocketPath is None)
        assert 0 < timeoutMs <= 10_000
        if story().get("trouble") == "refused":
            raise dcgm_structs.DCGMError_ConnectionNotValid("Host engine connection invalid/disconnected")

        self.handle = self

    def GetSystem(self):
        return DcgmSystem()


class DcgmSystem:
    def __init__(self):
        self.discovery = self

    def GetAllSupportedGpuIds(self):
        trouble = story().get("trouble")
        if trouble == "hang":
            time.sleep(3600)
        if trouble == "crash":
            os.abort()
        return list(range(len(story()["gpus"])))

    def GetGpuAttributes(self, number):
        gpu = story()["gpus"][number]
        names = {"pciBusId": gpu["pci"], "uuid": gpu["uuid"]}
        if story().get("version") == 3:
            names = {key: name.encode() for key, name in names.items()}
        return SimpleNamespace(identifiers=SimpleNamespace(**names))

    def GetGroupWithGpuIds(self, name, numbers):
        return DcgmGroup(numbers)

    def UpdateAllFields(self, wait):
        assert wait


class DcgmFieldGroup:
    def __init__(self, handle, name, fieldIds):
        for number in fieldIds:
            # The real one refuses the whole group for one number it does not know.
            if dcgm_fields.DcgmFieldGetById(number) is None:
                raise dcgm_structs.DCGMError_BadParam("Bad parameter passed to function")
        self.fieldIds = list(fieldIds)


class DcgmGroup:
    def __init__(self, numbers):
        self._entities = [(1, number) for number in numbers]
        self.samples = self

    def AddEntity(self, entityGroupId, entityId):
        self._entities.append((entityGroupId, entityId))

    def WatchFields(self, fieldGroup, updateFreq, maxKeepAge, maxKeepSamples):
        assert updateFreq >= 100_000, "microseconds"
        profiled = [number for number in fieldGroup.fieldIds if number >= 1000]
        trouble = story().get("trouble")
        if profiled and trouble == "no_profiling":
            raise dcgm_structs.DCGMError_ModuleNotLoaded("This request is serviced by a module that is not loaded")
        if trouble == "few_counters" and len(profiled) > 7:
            raise dcgm_structs.DCGMError_ProfilingMultiPassError("The requested metrics cannot be watched together")

    def GetLatest_v2(self, fieldGroup):
        told = story()
        if told.get("trouble") == "disconnected":
            raise dcgm_structs.DCGMError_ConnectionNotValid("Host engine connection invalid/disconnected")
        if told.get("trouble") == "profiling_lost" and fieldGroup.fieldIds[0] >= 1000:
            raise dcgm_structs.DCGMError_ModuleNotLoaded("This request is serviced by a module that is not loaded")
        taken = (time.time() - told.get("age", 0.0)) * 1e6
        values = {}
        for kind, number in self._entities:
            of = told["gpus"][number] if kind == 1 else told["instances"][number]
            known = {int(field): value for field, value in of["values"].items()}
            values.setdefault(kind, {})[number] = {
                field: [SimpleNamespace(value=known[field], isBlank=field in told.get("blank", ()), ts=taken)]
                for field in fieldGroup.fieldIds
                if field in known
            }
        return SimpleNamespace(values=values)
