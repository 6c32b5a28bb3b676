"""A process with the real nvidia-ml-py, asked one expression after the other."""

import json
import subprocess
import sys
from types import TracebackType
from typing import Any, Self

from tests.support.fake_nvml import FakeNvml

# A program that evaluates the lines it gets and answers each with JSON, so that faults can come between two calls.
ASKED = '''
import ctypes, json, sys, threading, time
import pynvml as n
n.nvmlInit()
names = vars(n)
g = [n.nvmlDeviceGetHandleByIndex(i) for i in range(n.nvmlDeviceGetCount())]

def plain(value):
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, (ctypes.Structure, n._PrintableStructure)):
        return {name: plain(getattr(value, name)) for name, _ in value._fields_ if name != "version"}
    if isinstance(value, ctypes.Array):
        return [plain(one) for one in value]
    if hasattr(value, "__dict__") and not isinstance(value, type):
        return {name: plain(one) for name, one in vars(value).items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if isinstance(value, ctypes._SimpleCData):
        return plain(value.value)
    return value

def filled(function, struct, *rest, version=None):
    made = struct()
    if version is not None:
        made.version = version
    function(*rest, ctypes.byref(made))
    return made

def fields(device, *ids):
    values = n.nvmlDeviceGetFieldValues(device, list(ids))
    return [[v.nvmlReturn, v.valueType, v.value.ullVal, v.value.dVal] for v in values]

def gpm(device, *ids, mig=None, pause=0.01):
    a, b = n.nvmlGpmSampleAlloc(), n.nvmlGpmSampleAlloc()
    for sample in (a, b):
        n.nvmlGpmSampleGet(device, sample) if mig is None else n.nvmlGpmMigSampleGet(device, mig, sample)
        time.sleep(pause)
    asked = n.c_nvmlGpmMetricsGet_t()
    asked.version, asked.numMetrics, asked.sample1, asked.sample2 = 1, len(ids), a, b
    for place, metric in enumerate(ids):
        asked.metrics[place].metricId = metric
    n.nvmlGpmMetricsGet(asked)
    n.nvmlGpmSampleFree(a), n.nvmlGpmSampleFree(b)
    return [[m.nvmlReturn, m.value] for m in asked.metrics[:len(ids)]]

events = None
def wait(milliseconds, types=0xFFFF):
    global events
    if events is None:
        events = n.nvmlEventSetCreate()
        for device in g:
            n.nvmlDeviceRegisterEvents(device, types, events)
    e = n.nvmlEventSetWait_v2(events, milliseconds)
    return [n.nvmlDeviceGetUUID(e.device), e.eventType, e.eventData, e.gpuInstanceId, e.computeInstanceId]

def ticks_while(function, seconds):
    """How far another thread gets while a call blocks."""
    threading.Thread(target=function, daemon=True).start()
    ends, count = time.monotonic() + seconds, 0
    while time.monotonic() < ends:
        count += 1
        time.sleep(0.005)
    return count

print("ready", flush=True)
for line in sys.stdin:
    try:
        said = {"value": plain(eval(line))}
    except n.NVMLError as error:
        said = {"error": error.value, "class": type(error).__name__}
    except n.NVMLLibraryMismatchError as error:
        said = {"error": "mismatch"}
    except Exception as error:
        said = {"error": repr(error)}
    print(json.dumps(said), flush=True)
'''  # fmt: skip


class Client:
    """A process with nvidia-ml-py on a fake library."""

    def __init__(self, nvml: FakeNvml) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", ASKED], env=nvml.env(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def tell(self, expression: str) -> None:
        """Asks and waits for no answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(" ".join(expression.split()) + "\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """The next answer."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the client ended with {self.process.wait()}"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, expression: str) -> Any:
        """The value of an expression, or the number of the NVML error."""
        self.tell(expression)
        said = self.answer()
        return said["value"] if "value" in said else said["error"]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """It has ended."""
        self.process.kill()
        self.process.communicate()
