"""A load for one GPU: matrix products on tensor cores, or copies through its memory.

usage  python bench/_gpu_load.py product|copy SECONDS

By torch or cupy where they are installed, else by the driver alone (libcuda.so.1): a small kernel in PTX, which the
driver itself compiles. Runs on the first GPU that CUDA_VISIBLE_DEVICES leaves. Prints a line of JSON once it is warm,
`{"ready": ..., "by": ...}`, and at the end one with `steps`: [seconds since 1970, milliseconds of the step] each.
Exit code 3 where it cannot run here, with the reason on standard error.
"""

import ctypes
import json
import sys
import time
from collections.abc import Callable

Step = Callable[[], None]

SIDE = 8192  # of the matrices; a step takes some milliseconds
COPY_BYTES = 1 << 30
ROUNDS = 4096  # of the kernel's loop
ACCUMULATORS = 8  # independent sums, so that the pipes need not wait for one another
BLOCKS_A_PROCESSOR, THREADS = 4, 256


class NotHere(Exception):
    """This load cannot run on this machine."""


def ptx() -> str:
    """A kernel that multiplies on tensor cores and does little else; for compute capability 8.0 and newer.

    Source  PTX ISA 7.0, mma.sync.aligned.m16n8k16
    """
    sums = [[f"%c{4 * n + k}" for k in range(4)] for n in range(ACCUMULATORS)]
    lines = [
        ".version 7.0", ".target sm_80", ".address_size 64",
        ".visible .entry product(.param .u64 out, .param .u32 rounds)", "{",
        ".reg .pred %p;", ".reg .b32 %a<4>, %b<2>, %r<5>;", f".reg .f32 %c<{4 * ACCUMULATORS}>;", ".reg .b64 %d<4>;",
        *(f"mov.b32 %a{n}, 0x3c003c00;" for n in range(4)),  # two halves of 1.0
        *(f"mov.b32 %b{n}, 0x3c003c00;" for n in range(2)),
        *(f"mov.f32 {name}, 0f00000000;" for one in sums for name in one),
        "ld.param.u32 %r0, [rounds];", "again:",
        *(
            f"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {{{', '.join(one)}}}, {{%a0, %a1, %a2, %a3}}, "
            f"{{%b0, %b1}}, {{{', '.join(one)}}};"
            for one in sums
        ),
        "sub.u32 %r0, %r0, 1;", "setp.ne.u32 %p, %r0, 0;", "@%p bra again;",
        *(f"add.f32 %c0, %c0, {one[0]};" for one in sums[1:]),
        "mov.u32 %r1, %ctaid.x;", "mov.u32 %r2, %ntid.x;", "mov.u32 %r3, %tid.x;", "mad.lo.u32 %r4, %r1, %r2, %r3;",
        "mul.wide.u32 %d1, %r4, 4;", "ld.param.u64 %d0, [out];", "cvta.to.global.u64 %d2, %d0;",
        "add.u64 %d3, %d2, %d1;", "st.global.f32 [%d3], %c0;", "ret;", "}", "",
    ]  # fmt: skip
    return "\n".join(lines)


class Driver:
    """As much of the driver's API as this needs.

    Source  cuda.h: 75 and 76 are the attributes of compute capability, 16 the number of multiprocessors
    """

    def __init__(self) -> None:
        try:
            self._cuda = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise NotHere(f"neither torch nor cupy is installed, and libcuda.so.1 cannot be loaded: {error}") from error
        self._device = ctypes.c_int()
        context = ctypes.c_void_p()
        self._call("cuInit", 0)
        self._call("cuDeviceGet", ctypes.byref(self._device), 0)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self._device)
        self._call("cuCtxSetCurrent", context)
        self._processors = self._attribute(16)
        self._capability = self._attribute(75), self._attribute(76)

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self._cuda, name)(*arguments)
        if code:
            raise NotHere(f"{name} failed with CUDA error {code}")

    def _attribute(self, number: int) -> int:
        value = ctypes.c_int()
        self._call("cuDeviceGetAttribute", ctypes.byref(value), number, self._device)
        return value.value

    def _memory(self, size: int) -> ctypes.c_uint64:
        pointer = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size))
        return pointer

    def product(self) -> Step:
        """One launch of the kernel, over the whole GPU."""
        if self._capability < (8, 0):
            raise NotHere("the kernel needs compute capability 8.0; install torch to load this GPU")
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(module), ptx().encode())
        self._call("cuModuleGetFunction", ctypes.byref(function), module, b"product")
        blocks = self._processors * BLOCKS_A_PROCESSOR
        out, rounds = self._memory(4 * blocks * THREADS), ctypes.c_uint32(ROUNDS)
        places = [ctypes.cast(ctypes.byref(one), ctypes.c_void_p) for one in (out, rounds)]
        arguments = (ctypes.c_void_p * len(places))(*places)

        def step() -> None:
            self._call("cuLaunchKernel", function, blocks, 1, 1, THREADS, 1, 1, 0, None, arguments, None)
            self._call("cuCtxSynchronize")

        return step

    def copy(self) -> Step:
        """One copy within the GPU's memory."""
        source, target = self._memory(COPY_BYTES), self._memory(COPY_BYTES)

        def step() -> None:
            self._call("cuMemcpyDtoD_v2", target, source, ctypes.c_size_t(COPY_BYTES))
            self._call("cuCtxSynchronize")

        return step


def by_torch(kind: str) -> Step:
    """A step by torch.

    Raises  ImportError; NotHere where it sees no GPU
    """
    import torch  # type: ignore[import-not-found,unused-ignore]

    if not torch.cuda.is_available():
        raise NotHere("torch sees no GPU")
    if kind == "product":
        one = torch.randn(SIDE, SIDE, device="cuda", dtype=torch.float16)
        other = torch.randn(SIDE, SIDE, device="cuda", dtype=torch.float16)

        def work() -> None:
            torch.mm(one, other)
    else:
        source = torch.zeros(COPY_BYTES, device="cuda", dtype=torch.uint8)
        target = torch.empty_like(source)

        def work() -> None:
            target.copy_(source)

    def step() -> None:
        work()
        torch.cuda.synchronize()

    return step


def by_cupy(kind: str) -> Step:
    """A step by cupy.

    Raises  ImportError; NotHere where it sees no GPU
    """
    import cupy  # type: ignore[import-not-found,unused-ignore]

    try:
        if kind == "product":
            one = cupy.ones((SIDE, SIDE), dtype=cupy.float16)
            other = cupy.ones((SIDE, SIDE), dtype=cupy.float16)

            def work() -> None:
                cupy.matmul(one, other)
        else:
            source = cupy.zeros(COPY_BYTES, dtype=cupy.uint8)
            target = cupy.empty_like(source)

            def work() -> None:
                cupy.copyto(target, source)
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise NotHere(f"cupy cannot use the GPU: {error}") from error

    def step() -> None:
        work()
        cupy.cuda.Device().synchronize()

    return step


def chosen(kind: str) -> tuple[str, Step]:
    """Who works, and one step of it; the first that can.

    Raises  NotHere with every reason
    """
    reasons = []
    for by, make in (("torch", by_torch), ("cupy", by_cupy), ("driver", lambda kind: getattr(Driver(), kind)())):
        try:
            step = make(kind)
            step()
        except ImportError:
            continue
        except NotHere as error:
            reasons.append(f"{by}: {error}")
            continue
        return by, step
    raise NotHere("; ".join(reasons))


def main(words: list[str]) -> int:
    """0 done, 3 not possible here, 64 usage."""
    if len(words) != 2 or words[0] not in ("product", "copy"):
        sys.stderr.write("usage: python bench/_gpu_load.py product|copy SECONDS\n")
        return 64
    try:
        by, step = chosen(words[0])
    except NotHere as error:
        sys.stderr.write(f"{error}\n")
        return 3
    for _ in range(5):
        step()
    print(json.dumps({"ready": time.time(), "by": by}), flush=True)
    steps: list[tuple[float, float]] = []
    ends = time.perf_counter() + float(words[1])
    while (began := time.perf_counter()) < ends:
        step()
        steps.append((round(time.time(), 4), round(1000 * (time.perf_counter() - began), 4)))
    print(json.dumps({"steps": steps}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
