"""Runs inside gdb: stops a process again and again at the test's command and tells its registers and stack.

Commands, one a line on the socket of descriptor GPUPROF_ORACLE_FD: "here", "continue" (until somebody sends
SIGINT), "step N" (instructions), "enter FUNCTION" (at its first instruction, with zeros below the stack
pointer, which it may rely on for nothing), "quit". The answer to each is a line of JSON about the newest
thread: the registers that a walk begins with, and gdb's frames, innermost first: [program counter, stack
pointer, name].
"""

import json
import os
import socket

import gdb  # type: ignore[import-not-found]

REGISTERS = {"pc": "rip", "sp": "rsp", "bp": "rbp", "r10": "r10", "r13": "r13", "fsbase": "fs_base"}
MASK = (1 << 64) - 1
MAX_FRAMES = 200
BELOW_BYTES = 2048


def number(frame, register):
    return int(frame.read_register(register)) & MASK


def answer():
    gdb.execute(f"thread {max(thread.num for thread in gdb.selected_inferior().threads())}", to_string=True)
    frame = gdb.newest_frame()
    registers = {ours: number(frame, theirs) for ours, theirs in REGISTERS.items()}
    frames = []
    while frame is not None and len(frames) < MAX_FRAMES:
        if frame.type() not in (gdb.INLINE_FRAME, gdb.TAILCALL_FRAME):
            frames.append([frame.pc() & MASK, number(frame, "rsp"), frame.name() or "?"])
        frame = frame.older()
    return {**registers, "tid": gdb.selected_thread().ptid[1], "frames": frames}


def enter(function):
    gdb.execute(f"tbreak *{function}", to_string=True)
    gdb.execute("continue", to_string=True)
    pointer = number(gdb.newest_frame(), "rsp")
    gdb.selected_inferior().write_memory(pointer - BELOW_BYTES, bytes(BELOW_BYTES))


def main():
    for setting in (
        "pagination off", "confirm off", "backtrace past-main on", "backtrace past-entry on",
        "backtrace limit 200", "auto-load off", "print thread-events off",
    ):  # fmt: skip
        gdb.execute(f"set {setting}", to_string=True)
    gdb.execute("handle SIGINT stop print nopass", to_string=True)
    for signal in ("SIGALRM", "SIGCHLD", "SIGPIPE"):
        gdb.execute(f"handle {signal} nostop pass noprint", to_string=True)
    gdb.execute(f"attach {os.environ['GPUPROF_ORACLE_PID']}", to_string=True)
    with (
        socket.socket(fileno=int(os.environ["GPUPROF_ORACLE_FD"])) as channel,
        channel.makefile("rw") as lines,
    ):
        for line in lines:
            command, _, argument = line.strip().partition(" ")
            if command == "quit":
                break
            if command == "enter":
                enter(argument)
            elif command != "here":
                gdb.execute(f"stepi {argument}" if command == "step" else "continue", to_string=True)
            lines.write(json.dumps(answer()) + "\n")
            lines.flush()
    gdb.execute("detach", to_string=True)


main()
