"""The fields of NVIDIA's bindings, by number alone."""

import json
import os
from types import SimpleNamespace


def DcgmFieldGetById(number):
    with open(os.environ["FAKE_DCGM"], encoding="utf-8") as file:
        version = json.load(file).get("version", 4)
    return None if version == 3 and number == 253 else SimpleNamespace(fieldId=number)
