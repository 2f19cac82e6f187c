"""A screen without a screen, for the supervisor's tests: does what its input says and answers in JSON lines.

Run as the supervisor runs the real one: --fd N --control-fd M [--drop-caps] [--save-through-parent].
"""

import json
import os
import select
import signal
import socket
import sys
import termios
import time
import tty

from gpuprof.tui import control, privileges


def say(**fields: object) -> None:
    os.write(1, json.dumps(fields).encode() + b"\n")


def first_bytes(sock: socket.socket) -> int:
    """The pid in the hello that a sampler sends, or 0 when the stream ends without one."""
    from gpuprof.snapshots.frames import Hello
    from gpuprof.snapshots.wire import Decoder

    decoder = Decoder()
    while data := sock.recv(65536):
        for frame in decoder.feed(data):
            if isinstance(frame, Hello):
                return frame.sampler_pid
    return 0


def packet(link: socket.socket, op: str) -> control.Packet:
    """The next packet of a kind (or a refusal); news of the sampler on the way are passed on."""
    while True:
        select.select([link], [], [], 20)
        got = control.receive(link)
        if got is None:
            raise TimeoutError(op)
        if got.op in (op, "refused"):
            return got
        say(news=got.fields)


def main() -> None:
    words = sys.argv[1:]
    stream = socket.socket(fileno=int(words[words.index("--fd") + 1]))
    link = socket.socket(fileno=int(words[words.index("--control-fd") + 1]))
    say(pid=os.getpid(), parent=os.getppid(), words=words)
    for line in iter(sys.stdin.readline, ""):
        verb, _, rest = line.strip().partition(" ")
        if verb == "hello":
            say(sampler=first_bytes(stream))
        elif verb == "eof":
            while stream.recv(65536):
                pass
            say(eof=True)
        elif verb == "reconnect":
            control.send(link, "reconnect")
            answer = packet(link, "connection")
            if answer.fd >= 0:
                stream = socket.socket(fileno=answer.fd)
            say(op=answer.op, **answer.fields)
        elif verb == "news":
            select.select([link], [], [], 20)
            got = control.receive(link)
            say(op=got.op if got else None, **(got.fields if got else {}))
        elif verb == "attach":
            control.send(link, "attach", pid=rest)
            answer = packet(link, "attached")
            say(op=answer.op, **answer.fields)
        elif verb == "save":
            control.send(link, "save")
            answer = packet(link, "saved")
            if answer.fd >= 0:
                os.write(answer.fd, b"snapshot")
            say(op=answer.op, **answer.fields)
            answer.close()
        elif verb == "discard":
            control.send(link, "discard")
            control.send(link, "attach", pid="x")  # an answer, after which the other is done, too
            say(op=packet(link, "attached").op)
        elif verb == "nonsense":
            for body in (
                b"x" * 100,
                b"[" * 5000,
                json.dumps({"op": "save", "path": "/etc/passwd"}).encode(),
            ):
                link.send(body)
            answer = packet(link, "saved")
            say(op=answer.op, **answer.fields)
            answer.close()
        elif verb == "drop":
            privileges.drop_capabilities()
            import colorsys  # a module that nothing has imported yet

            say(dropped=colorsys.__name__, left=sorted(privileges.effective_capabilities("CapPrm")))
        elif verb == "suspend":
            os.kill(os.getpid(), signal.SIGTSTP)
            say(resumed=True)
        elif verb == "deaf":
            for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(signum, signal.SIG_IGN)
            say(deaf=True)
        elif verb == "raw":
            tty.setraw(0, termios.TCSANOW)
            os.write(1, b"\x1b[?1049h\x1b[?1003h\x1b[?25l")
            say(raw=True)
            time.sleep(60)
        elif verb == "exit":
            sys.exit(int(rest))


main()
