"""bpf(2) and perf_event_open(2) by number, for the sampler, which must not load libbcc.

Both take a structure that the kernel reads (union bpf_attr, struct perf_event_attr of the UAPI headers);
unused trailing bytes are zero. Every function raises OSError with the errno of the call.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import struct

_NR_BPF = 321  # x86-64
_NR_PERF_EVENT_OPEN = 298

_BPF_MAP_CREATE = 0
_BPF_MAP_LOOKUP_ELEM = 1
_BPF_MAP_UPDATE_ELEM = 2
_BPF_MAP_DELETE_ELEM = 3
_BPF_MAP_GET_NEXT_KEY = 4
_BPF_PROG_LOAD = 5
_BPF_OBJ_GET_INFO_BY_FD = 15
_BPF_MAP_LOOKUP_BATCH = 24
_BPF_MAP_UPDATE_BATCH = 26
_BPF_RAW_TRACEPOINT_OPEN = 17
_BPF_ENABLE_STATS = 32
_ATTR_BYTES = 128
_BATCH = 1024

_LOG_STATS = 4  # errors and totals, not every instruction
_NAME_BYTES = 15

MAX_HZ = 10_000

_PERF_TYPE_SOFTWARE = 1
_PERF_COUNT_SW_CPU_CLOCK = 0
_PERF_ATTR_BYTES = 112  # PERF_ATTR_SIZE_VER5
_PERF_FLAG_DISABLED = 1 << 0
_PERF_FLAG_EXCLUDE_IDLE = 1 << 7
_PERF_FLAG_FD_CLOEXEC = 8
_UPROBE_TYPE = "/sys/bus/event_source/devices/uprobe/type"
_PERF_EVENT_IOC_ENABLE = 0x2400
_PERF_EVENT_IOC_SET_BPF = 0x40042408

_MAP_INFO = struct.Struct("<6I")  # struct bpf_map_info: type, id, key size, value size, max_entries, flags
_PROG_INFO_BYTES = 224
_RUN_TIME_OFFSET = 192  # struct bpf_prog_info.run_time_ns, then run_cnt

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


class ProgramRefused(OSError):
    """The kernel does not take a program; `log` is what the verifier said."""

    def __init__(self, code: int | None, words: str | None, log: str) -> None:
        super().__init__(code, words)
        self.log = log


def _check(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def _bpf(command: int, attr: bytes, what: str) -> int:
    buffer = ctypes.create_string_buffer(attr, _ATTR_BYTES)
    number, size = ctypes.c_long(_NR_BPF), ctypes.c_uint(_ATTR_BYTES)
    return _check(_libc.syscall(number, ctypes.c_int(command), buffer, size), what)


def map_create(
    name: str, kind: int, key_size: int, value_size: int, *, max_entries: int, flags: int = 0
) -> int:
    """A descriptor of a new map; `kind` is enum bpf_map_type."""
    short = name.encode()[:_NAME_BYTES]
    attr = struct.pack("<7I16s", kind, key_size, value_size, max_entries, flags, 0, 0, short)
    return _bpf(_BPF_MAP_CREATE, attr, f"bpf map {name}")


def map_info(fd: int) -> tuple[int, int, int, int, int]:
    """(type, key size, value size, max_entries, flags) of a map, as map_create takes them."""
    info = ctypes.create_string_buffer(_MAP_INFO.size)
    attr = struct.pack("<IIQ", fd, _MAP_INFO.size, ctypes.addressof(info))
    _bpf(_BPF_OBJ_GET_INFO_BY_FD, attr, "bpf map info")
    kind, _, key_size, value_size, max_entries, flags = _MAP_INFO.unpack(info.raw)
    return kind, key_size, value_size, max_entries, flags


def program_load(name: str, kind: int, code: bytes, *, log_bytes: int = 0) -> int:
    """A descriptor of a program that the kernel has verified; `kind` is enum bpf_prog_type.

    The verifier may take long, without the GIL. A refusal is ProgramRefused, with the verifier's words
    where there is room for them.
    """
    instructions = ctypes.create_string_buffer(code, len(code))
    words = ctypes.create_string_buffer(b"GPL")
    log = ctypes.create_string_buffer(max(log_bytes, 1))
    attr = struct.pack(
        "<IIQQIIQII16s", kind, len(code) // 8, ctypes.addressof(instructions), ctypes.addressof(words),
        _LOG_STATS if log_bytes else 0, log_bytes, ctypes.addressof(log) if log_bytes else 0, 0, 0,
        name.encode()[:_NAME_BYTES],
    )  # fmt: skip
    try:
        return _bpf(_BPF_PROG_LOAD, attr, f"bpf program {name}")
    except OSError as error:
        raise ProgramRefused(error.errno, error.strerror, log.value.decode(errors="replace")) from None


def map_lookup(fd: int, key: bytes, value_size: int) -> bytes | None:
    """The value of a key; None when there is none. `value_size` is what the kernel writes (per-CPU maps: for
    all CPUs).
    """
    key_buffer = ctypes.create_string_buffer(key, len(key))
    value = ctypes.create_string_buffer(value_size)
    attr = struct.pack("<IxxxxQQQ", fd, ctypes.addressof(key_buffer), ctypes.addressof(value), 0)
    try:
        _bpf(_BPF_MAP_LOOKUP_ELEM, attr, "bpf map lookup")
    except FileNotFoundError:
        return None
    return value.raw


def map_update(fd: int, key: bytes, value: bytes) -> None:
    """Write one element, new or not."""
    key_buffer = ctypes.create_string_buffer(key, len(key))
    value_buffer = ctypes.create_string_buffer(value, len(value))
    attr = struct.pack("<IxxxxQQQ", fd, ctypes.addressof(key_buffer), ctypes.addressof(value_buffer), 0)
    _bpf(_BPF_MAP_UPDATE_ELEM, attr, "bpf map update")


def map_update_many(fd: int, keys: bytes, values: bytes, count: int) -> None:
    """Write `count` elements, which follow each other in `keys` and `values` (5.6+)."""
    key_buffer = ctypes.create_string_buffer(keys, max(len(keys), 1))
    value_buffer = ctypes.create_string_buffer(values, max(len(values), 1))
    attr = struct.pack(
        "<QQQQIIQQ", 0, 0, ctypes.addressof(key_buffer), ctypes.addressof(value_buffer), count, fd, 0, 0
    )
    _bpf(_BPF_MAP_UPDATE_BATCH, attr, "bpf map batch update")


def map_delete(fd: int, key: bytes) -> bool:
    """Remove one element; False when it was not there."""
    key_buffer = ctypes.create_string_buffer(key, len(key))
    attr = struct.pack("<IxxxxQQQ", fd, ctypes.addressof(key_buffer), 0, 0)
    try:
        _bpf(_BPF_MAP_DELETE_ELEM, attr, "bpf map delete")
    except FileNotFoundError:
        return False
    return True


def map_keys(fd: int, key_size: int, limit: int) -> list[bytes]:
    """The keys of a hash map, at most `limit`. A key that is removed meanwhile may start the walk over, hence
    the limit.
    """
    keys: dict[bytes, None] = {}
    following = ctypes.create_string_buffer(key_size)
    key: bytes | None = None
    for _ in range(limit):
        current = ctypes.create_string_buffer(key, key_size) if key is not None else None
        attr = struct.pack(
            "<IxxxxQQQ", fd, ctypes.addressof(current) if current else 0, ctypes.addressof(following), 0
        )
        try:
            _bpf(_BPF_MAP_GET_NEXT_KEY, attr, "bpf map walk")
        except FileNotFoundError:
            break
        key = following.raw
        keys[key] = None
    return list(keys)


def map_values(fd: int, key_size: int, value_size: int, limit: int) -> bytes:
    """The values of a hash map one after the other, at most `limit` (5.6+).

    An element that is added or removed meanwhile may be left out or come twice.
    """
    batch = ctypes.create_string_buffer(8)
    keys = ctypes.create_string_buffer(key_size * _BATCH)
    values = ctypes.create_string_buffer(value_size * _BATCH)
    found: list[bytes] = []
    count, begun = 0, False
    while count < limit:
        attr = struct.pack(
            "<QQQQIIQQ", ctypes.addressof(batch) if begun else 0, ctypes.addressof(batch),
            ctypes.addressof(keys), ctypes.addressof(values), _BATCH, fd, 0, 0,
        )  # fmt: skip
        buffer = ctypes.create_string_buffer(attr, _ATTR_BYTES)
        number, size = ctypes.c_long(_NR_BPF), ctypes.c_uint(_ATTR_BYTES)
        result = _libc.syscall(number, ctypes.c_int(_BPF_MAP_LOOKUP_BATCH), buffer, size)
        ended = result < 0 and ctypes.get_errno() == errno.ENOENT
        if not ended:
            _check(result, "bpf map batch")
        taken = struct.unpack_from("<I", buffer, 32)[0]
        found.append(values.raw[: taken * value_size])
        count += taken
        begun = True
        if ended or not taken:
            break
    return b"".join(found)


def enable_run_time_stats() -> int:
    """A descriptor; while it is open the kernel counts the run time of BPF programs (5.8+)."""
    return _bpf(_BPF_ENABLE_STATS, struct.pack("<I", 0), "bpf statistics")


def program_run_time(fd: int) -> tuple[int, int]:
    """(nanoseconds, runs) of a program with all that it tail-calls, since statistics were enabled."""
    info = ctypes.create_string_buffer(_PROG_INFO_BYTES)
    attr = struct.pack("<IIQ", fd, _PROG_INFO_BYTES, ctypes.addressof(info))
    _bpf(_BPF_OBJ_GET_INFO_BY_FD, attr, "bpf program info")
    nanoseconds, runs = struct.unpack_from("<QQ", info, _RUN_TIME_OFFSET)
    return nanoseconds, runs


def program_verified_instructions(fd: int) -> int:
    """How many instructions the verifier looked at to accept the program (0 before 5.16)."""
    info = ctypes.create_string_buffer(_PROG_INFO_BYTES)
    attr = struct.pack("<IIQ", fd, _PROG_INFO_BYTES, ctypes.addressof(info))
    _bpf(_BPF_OBJ_GET_INFO_BY_FD, attr, "bpf program info")
    return int(struct.unpack_from("<I", info, _RUN_TIME_OFFSET + 24)[0])


def raw_tracepoint_open(name: str, program: int) -> int:
    """Attach a program to a raw tracepoint; it stays until the returned descriptor is closed."""
    text = ctypes.create_string_buffer(name.encode())
    attr = struct.pack("<QI", ctypes.addressof(text), program)
    return _bpf(_BPF_RAW_TRACEPOINT_OPEN, attr, f"raw tracepoint {name}")


def cpu_clock_attr(hz: int) -> bytes:
    """struct perf_event_attr of a disabled CPU clock event, idle excluded. ValueError for a rate outside of
    1..10,000.
    """
    if not 1 <= hz <= MAX_HZ:
        raise ValueError(f"cannot sample at {hz} Hz")
    period_ns = 1_000_000_000 // hz  # not a frequency, which perf_event_max_sample_rate would limit
    flags = _PERF_FLAG_DISABLED | _PERF_FLAG_EXCLUDE_IDLE
    fields = (_PERF_TYPE_SOFTWARE, _PERF_ATTR_BYTES, _PERF_COUNT_SW_CPU_CLOCK, period_ns, 0, 0, flags)
    return struct.pack("<IIQQQQQ", *fields).ljust(_PERF_ATTR_BYTES, b"\0")


def open_cpu_clock(cpu: int, hz: int, program: int) -> int:
    """A CPU clock event of one CPU, all processes but idle; runs the program `hz` times a second until
    closed.
    """
    return _open_event(cpu_clock_attr(hz), -1, cpu, program, f"perf event on CPU {cpu}")


def open_uprobe(pid: int, path: str, offset: int, program: int) -> int:
    """Run a program whenever a thread of process `pid` executes the instruction at `offset` of the file.

    The kernel resolves `path` once, here. Ends when the returned descriptor is closed. perf_event_open(2):
    config1 is a pointer to the path, config2 the offset, of the PMU whose type sysfs gives.
    """
    with open(_UPROBE_TYPE, encoding="ascii") as file:
        kind = int(file.read())
    name = ctypes.create_string_buffer(os.fsencode(path))
    fields = (kind, _PERF_ATTR_BYTES, 0, 0, 0, 0, 0, 0, 0, ctypes.addressof(name), offset)
    try:
        attr = struct.pack("<IIQQQQQIIQQ", *fields).ljust(_PERF_ATTR_BYTES, b"\0")
    except struct.error:  # where a file says so of itself
        raise OSError(errno.EINVAL, f"uprobe on {path}: no offset of a file: {offset}") from None
    return _open_event(attr, pid, -1, program, f"uprobe on {path}")


def _open_event(attr: bytes, pid: int, cpu: int, program: int, what: str) -> int:
    """The descriptor of an event that runs a program. `what` it is, for an OSError."""
    buffer = ctypes.create_string_buffer(attr, len(attr))
    result = _libc.syscall(
        ctypes.c_long(_NR_PERF_EVENT_OPEN), buffer, ctypes.c_int(pid), ctypes.c_int(cpu), ctypes.c_int(-1),
        ctypes.c_ulong(_PERF_FLAG_FD_CLOEXEC),
    )  # fmt: skip
    fd = _check(result, what)
    try:
        fcntl.ioctl(fd, _PERF_EVENT_IOC_SET_BPF, program)
        fcntl.ioctl(fd, _PERF_EVENT_IOC_ENABLE, 0)
    except BaseException:
        os.close(fd)
        raise
    return fd
