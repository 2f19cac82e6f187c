"""The injection library with a libcupti of one's choice, under a reader of its ring, in a program that needs
nothing but the driver: layouts, streams of waits, another user of CUPTI. A PASS or FAIL line for each claim.

usage: python3 other_cupti_check.py [LIBCUPTI ...]    with a GPU, no sampler running; 20 s for each

Without a path it is the libcupti that the library finds itself. A newer one than the driver is worth trying:
its records must be those that bpf/inject/cupti_abi.h declares.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from claims import claim

from gpuprof.sampler import gpu_ring
from gpuprof.tui import run

PTX = b"""
.version 7.0
.target sm_50
.address_size 64
.visible .entry kernel_one(.param .u64 ns) { ret; }
.visible .entry kernel_two(.param .u64 ns) { ret; }
.visible .entry kernel_spin(.param .u64 ns) {
  .reg .u64 %rd<5>; .reg .pred %p1;
  ld.param.u64 %rd1, [ns];
  mov.u64 %rd2, %globaltimer;
again:
  mov.u64 %rd3, %globaltimer;
  sub.u64 %rd4, %rd3, %rd2;
  setp.lt.u64 %p1, %rd4, %rd1;
  @%p1 bra again;
  ret;
}
"""
ONE, TWO, GRAPHS, NODES, COPIES, COPY_BYTES, CYCLES = 2003, 1009, 53, 3, 101, 12_345, 20
SPIN_NS = 60_000_000


# ------------------------------------------------------------------------------------------------ the program


class Params(ctypes.Structure):
    """CUpti_SubscriberParams."""

    _fields_ = [
        ("size", ctypes.c_size_t), ("name", ctypes.c_char_p), ("old", ctypes.c_char_p),
        ("old_size", ctypes.c_size_t), ("allow", ctypes.c_uint8), ("pad", ctypes.c_uint8 * 7),
    ]  # fmt: skip


CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p)
REQUESTED = ctypes.CFUNCTYPE(
    None, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_size_t),
    ctypes.c_void_p,
)  # fmt: skip
COMPLETED = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p)


class Other:
    """Another user of CUPTI, in the program."""

    def __init__(self, path: str) -> None:
        self.cupti = ctypes.CDLL(path)
        self.handle = ctypes.c_void_p()
        self.records = self.allow = 0
        self.buffers: list[Any] = []
        self.callback = CALLBACK(lambda user, domain, number, data: None)
        self.requested, self.completed = REQUESTED(self.request), COMPLETED(self.complete)

    def request(self, buffer: Any, size: Any, most: Any, info: Any) -> None:
        self.buffers.append(ctypes.create_string_buffer(1 << 20))
        buffer[0], size[0], most[0] = ctypes.addressof(self.buffers[-1]), 1 << 20, 0

    def complete(self, buffer: int, size: int, valid: int, info: Any) -> None:
        record = ctypes.c_void_p()
        while not self.cupti.cuptiActivityGetNextRecord_v2(
            self.handle, ctypes.c_void_p(buffer), ctypes.c_size_t(valid), ctypes.byref(record)
        ):
            self.records += 1

    def subscribe(self, allow: int) -> int:
        self.allow = allow
        params = Params(ctypes.sizeof(Params), b"other_check", None, 0, allow)
        if not allow:  # CUPTI 13.0 refuses a longer structure
            params.size = Params.allow.offset
        result = self.cupti.cuptiSubscribe_v2(
            ctypes.byref(self.handle), self.callback, None, ctypes.byref(params)
        )
        if result == 0 and allow:
            self.cupti.cuptiActivityRegisterCallbacks_v2(self.handle, self.requested, self.completed)
            self.cupti.cuptiActivityEnable_v2(self.handle, 10, None)
        return int(result)

    def leave(self) -> int:
        if self.allow:
            self.cupti.cuptiActivityDisable_v2(self.handle, 10, None)
        return int(self.cupti.cuptiUnsubscribe(self.handle))

    def got(self) -> int:
        self.cupti.cuptiActivityFlushAll(0)
        return self.records


class Work:
    """The program's CUDA calls; each must succeed."""

    def __init__(self) -> None:
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        context, module = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxSetCurrent", context)
        self.call("cuModuleLoadData", ctypes.byref(module), PTX)
        self.kernels = {}
        for name in ("one", "two", "spin"):
            self.kernels[name] = ctypes.c_void_p()
            self.call(
                "cuModuleGetFunction", ctypes.byref(self.kernels[name]), module, b"kernel_" + name.encode()
            )
        self.streams = [ctypes.c_void_p() for _ in range(2)]
        self.events = [ctypes.c_void_p() for _ in range(2)]
        for stream, event in zip(self.streams, self.events, strict=True):
            self.call("cuStreamCreate", ctypes.byref(stream), 1)  # does not wait for the default stream
            self.call("cuEventCreate", ctypes.byref(event), 2)
        self.other: Other | None = None

    def call(self, name: str, *arguments: Any) -> None:
        result = getattr(self.cuda, name)(*arguments)
        if result:
            raise RuntimeError(f"{name}: {result}")

    def launch(self, kernel: str, times: int = 1, stream: Any = None, ns: int = 0) -> None:
        value = ctypes.c_uint64(ns)
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(value))
        one = (1,) * 6
        for _ in range(times):
            self.call("cuLaunchKernel", self.kernels[kernel], *one, 0, stream, pointers, None)

    def kernels_and_copies(self) -> None:
        self.launch("one", ONE)
        self.launch("two", TWO, self.streams[0])
        device, host = ctypes.c_uint64(), ctypes.create_string_buffer(COPY_BYTES)
        self.call("cuMemAlloc_v2", ctypes.byref(device), COPY_BYTES)
        for _ in range(COPIES):
            self.call("cuMemcpyHtoD_v2", device, host, COPY_BYTES)
            self.call("cuMemsetD8_v2", device, 0, COPY_BYTES)
        self.call("cuCtxSynchronize")
        self.call("cuMemFree_v2", device)

    def graphs(self) -> None:
        """A stream is captured, with an event in it, whose stream is asked for while that goes on."""
        graph, ready = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuStreamBeginCapture_v2", self.streams[0], 0)
        for _ in range(NODES):
            self.launch("two", 1, self.streams[0])
            self.call("cuEventRecord", self.events[0], self.streams[0])
            self.call("cuStreamWaitEvent", self.streams[0], self.events[0], 0)
        self.call("cuStreamEndCapture", self.streams[0], ctypes.byref(graph))
        self.call("cuGraphInstantiateWithFlags", ctypes.byref(ready), graph, ctypes.c_uint64(0))
        for _ in range(GRAPHS):
            self.call("cuGraphLaunch", ready, self.streams[0])
        self.call("cuCtxSynchronize")

    def waits(self) -> None:
        """Of each stream an event is recorded and waited for, behind a kernel that takes a while."""
        for stream, event in zip(self.streams, self.events, strict=True):
            self.launch("spin", 1, stream, SPIN_NS // 20)
            self.call("cuEventRecord", event, stream)
        for event in self.events:
            self.call("cuEventSynchronize", event)
        for stream in self.streams:
            self.call("cuStreamSynchronize", stream)
        self.call("cuCtxSynchronize")

    def free(self) -> None:
        device = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(device), 1 << 20)
        self.launch("spin", 1, None, SPIN_NS)
        self.call("cuMemFree_v2", device)
        self.call("cuCtxSynchronize")

    def rate(self) -> float:
        """Microseconds a launch."""
        best = 1e9
        for _ in range(5):
            began = time.perf_counter()
            self.launch("one", 5000)
            best = min(best, (time.perf_counter() - began) / 5000)
            self.call("cuCtxSynchronize")
        return best * 1e6

    def obey(self, line: str) -> Any:
        word, *rest = line.split()
        if word == "other":
            self.other = self.other or Other(rest[1])
            return self.other.subscribe(int(rest[0]))
        if word in ("leave", "got"):
            return getattr(self.other, word)()
        return getattr(self, word)()


def program() -> None:
    work = Work()
    for line in sys.stdin:
        print(work.obey(line), flush=True)


# ------------------------------------------------------------------------------------------------- the checks


class Watched:
    """The program, and what its ring says."""

    def __init__(self, cupti: str) -> None:
        environment = run.environment(os.environ)
        if cupti:
            environment["GPUPROF_CUPTI"] = cupti
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--program"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip
        self.unmeasured_us = float(self.ask("rate"))
        links = Path(f"/proc/{self.process.pid}/fd").iterdir()
        self.link = next(link for link in links if os.readlink(link).startswith(gpu_ring.NAME))
        self.names: dict[int, str] = {}
        self.attach()

    def ask(self, line: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline().strip()
        if not answer:
            raise SystemExit(f"FAIL the program ended at {line!r}: {self.process.wait()}")
        return answer

    def attach(self) -> None:
        self.ring = gpu_ring.GpuRing(os.open(self.link, os.O_RDWR | os.O_CLOEXEC))
        end = time.monotonic() + 5
        while not self.ring.lock():
            if time.monotonic() > end:
                raise SystemExit("FAIL a sampler listens to the program: stop it")
            time.sleep(0.05)

    def detach(self) -> None:
        self.ring.close()
        watcher = gpu_ring.GpuRing(os.open(self.link, os.O_RDWR | os.O_CLOEXEC))
        end = time.monotonic() + 3
        while watcher.facts().state != "waiting" and time.monotonic() < end:
            self.ask("rate")
        watcher.close()

    def reach(self, *states: str, seconds: float = 5.0) -> gpu_ring.RingFacts:
        end = time.monotonic() + seconds
        while self.ring.facts().state not in states and time.monotonic() < end:
            time.sleep(0.005)
        return self.ring.facts()

    def slots(self, line: str) -> Any:
        """What comes of a line, within three seconds."""
        self.ring.slots()
        self.ask(line)
        parts, end = [], time.monotonic() + 3
        while time.monotonic() < end:
            parts.append(self.ring.slots())
            time.sleep(0.02)
        slots = np.concatenate(parts)
        for part in slots[slots["kind"] == gpu_ring.NAME_PART].view(gpu_ring.TEXTS):
            text = part["text"].tobytes()[: part["length"]].decode()
            self.names[int(part["id"])] = (
                self.names.get(int(part["id"]), "") if part["offset"] else ""
            ) + text
        return slots

    def named(self, rows: Any) -> Counter[str]:
        return Counter(self.names.get(number, "?") for number in rows["name"].tolist())


def of(slots: Any, kind: int) -> Any:
    return slots[slots["kind"] == kind]


def records(watched: Watched) -> None:
    slots = watched.slots("kernels_and_copies")
    kernels, copies, sets = (of(slots, kind) for kind in (gpu_ring.KERNEL, gpu_ring.MEMCPY, gpu_ring.MEMSET))
    found = watched.named(kernels)
    claim(found == {"kernel_one": ONE, "kernel_two": TWO}, f"kernels by name: {dict(found)}")
    claim(
        len(copies) == len(sets) == COPIES and set(copies["bytes"]) == set(sets["bytes"]) == {COPY_BYTES},
        f"{len(copies)} copies and {len(sets)} sets of {COPY_BYTES} bytes",
    )
    work = slots[slots["kind"] <= gpu_ring.MEMSET]
    claim(bool((work["start"] > 0).all() and (work["end"] >= work["start"]).all()), "all have sound times")
    claim(bool((work["enter"] > 0).all()), "all know when they were launched")
    claim(len(set(kernels["stream"].tolist())) == 2, "two streams")
    facts = watched.ring.facts()
    claim(facts.dropped == facts.cupti_dropped == 0, "nothing dropped")


def waits(watched: Watched) -> None:
    watched.slots("waits")  # the process is seen to wait for events
    slots = watched.slots("waits")
    spins = of(slots, gpu_ring.KERNEL)["stream"].tolist()
    rows = of(slots, gpu_ring.WAIT).view(gpu_ring.WAITS)
    rows = rows[np.argsort(rows["start_ns"])]
    streams = [
        (watched.names.get(int(row["name"]), "?"), int(row["stream"]) if row["flags"] else None)
        for row in rows
    ]
    for name in ("cuEventSynchronize", "cuStreamSynchronize"):
        told = [stream for called, stream in streams if called == name]
        claim(sorted(map(str, told)) == sorted(map(str, spins)), f"{name}: streams {told}, kernels' {spins}")
    graph = of(watched.slots("graphs"), gpu_ring.KERNEL)
    claim(
        len(graph) == GRAPHS * NODES and bool((graph["graph"] > 0).all()),
        f"{len(graph)} kernels of {GRAPHS} graphs, with events recorded in the capture",
    )
    rows = of(watched.slots("free"), gpu_ring.WAIT).view(gpu_ring.WAITS)
    long = [
        (watched.names.get(int(row["name"]), "?"), (int(row["end_ns"]) - int(row["start_ns"])) / 1e6)
        for row in rows
    ]
    claim(
        any(name == "cuMemFree_v2" and ms > SPIN_NS / 2e6 for name, ms in long),
        f"a free that waits for a kernel of {SPIN_NS // 10**6} ms: {long}",
    )


def others(watched: Watched, path: str) -> None:
    """Another user of CUPTI that wants to be alone; then one that does not."""
    watched.detach()
    claim(watched.ask(f"other 0 {path}") == "0", "after a detach another user of CUPTI subscribes")
    watched.attach()
    facts = watched.reach("refused")
    claim("other_check" in facts.message, f"it is named: {facts.message!r}")
    claim(watched.ask("leave") == "0", "it leaves")
    facts = watched.reach("recording")
    claim(facts.state == "recording" and not facts.message, "and we record")
    watched.detach()
    result = int(watched.ask(f"other 1 {path}"))
    if result:
        print(f"     CUPTI {facts.cupti_version} with this driver allows one subscriber only ({result})")
        watched.attach()
        return
    watched.attach()
    facts = watched.reach("recording")
    claim(facts.message.startswith("shares CUPTI with"), f"shared: {facts.message!r}")
    before = int(watched.ask("got"))
    slots = watched.slots("kernels_and_copies")
    claim(len(of(slots, gpu_ring.KERNEL)) == ONE + TWO, "beside it we get every kernel")
    claim(int(watched.ask("got")) - before == ONE + TWO, "and so does it")
    watched.detach()
    before = int(watched.ask("got"))
    watched.ask("kernels_and_copies")
    claim(int(watched.ask("got")) - before == ONE + TWO, "it goes on when we have left")
    claim(watched.ask("leave") == "0", "it leaves")
    watched.attach()
    facts = watched.reach("recording")
    print(f"     then: {facts.message or 'alone again'}")


def cycles(watched: Watched) -> None:
    with_us = float(watched.ask("rate"))
    for _ in range(CYCLES):
        watched.detach()
        watched.attach()
        watched.reach("recording")
    watched.detach()
    after = float(watched.ask("rate"))
    print(f"     a launch: {watched.unmeasured_us:.2f} us before, {with_us:.2f} recorded, {after:.2f} after")
    claim(after < 1.15 * watched.unmeasured_us, f"native speed after {CYCLES} cycles")


def check(cupti: str) -> None:
    watched = Watched(cupti)
    facts = watched.reach("recording", "refused")
    print(f"--- {facts.library}, CUPTI {facts.cupti_version}")
    claim(facts.state == "recording", f"it records; {facts.message}")
    if facts.state == "recording":
        claim(
            not cupti or os.path.realpath(facts.library) == os.path.realpath(cupti), "it is the one asked for"
        )
        records(watched)
        waits(watched)
        others(watched, cupti or facts.library)
        if not watched.ring.facts().message:
            cycles(watched)
    watched.process.kill()


def main(paths: list[str]) -> int:
    for path in paths or [""]:
        check(path)
    return claim.failed > 0


if __name__ == "__main__":
    if "--program" in sys.argv:
        program()
    else:
        sys.exit(main(sys.argv[1:]))
