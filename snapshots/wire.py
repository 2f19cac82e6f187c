"""Frames on a byte stream: the magic once, then for each frame a u32 little-endian length and that many
bytes of body.

Bytes before the magic (a login banner, a shell's greeting) can be skipped, up to 64 KiB.
"""

from __future__ import annotations

import struct

from gpuprof.snapshots import codec
from gpuprof.snapshots.errors import FrameError
from gpuprof.snapshots.frames import MAGIC, MAX_FRAME_BYTES, Frame

MAX_PREAMBLE_BYTES = 64 << 10
_LENGTH = struct.Struct("<I")


def pack(frame: Frame) -> bytes:
    """Return `frame` as it goes on the stream: length, then body. FrameError when it is too large."""
    body = codec.encode(frame)
    return _LENGTH.pack(len(body)) + body


class Decoder:
    """Turns the bytes of a stream, in pieces of any size, into frames. Not thread-safe.

    The stream starts with MAGIC. `skip_preamble`: other bytes may come before it, kept in `preamble`;
    `max_frame_bytes`: a longer frame is an error (a server that reads requests wants far less than the
    default).
    """

    def __init__(
        self,
        *,
        skip_preamble: bool = False,
        max_frame_bytes: int = MAX_FRAME_BYTES,
    ) -> None:
        self.preamble = b""
        self._buffer = bytearray()
        self._started = False
        self._skip = skip_preamble
        self._max = max_frame_bytes
        self._failed: FrameError | None = None

    @property
    def started(self) -> bool:
        """Tell whether the magic was seen."""
        return self._started

    @property
    def unread(self) -> bytes:
        """Return what came while no magic was found: words of somebody else. Empty once it was."""
        return b"" if self._started else bytes(self._buffer)

    @property
    def pending_bytes(self) -> int:
        """Return the number of bytes held that are not a whole frame yet; not 0 at the end of a stream that
        was cut.
        """
        return len(self._buffer)

    def feed(self, data: bytes | bytearray | memoryview) -> list[Frame]:
        """Return the frames that `data` completes; kinds that are not known here are left out.

        FrameError when the stream is not ours, or broken; every later call then raises the same.
        """
        if self._failed is not None:
            raise self._failed
        try:
            self._buffer += data
            if not self._started and not self._find_magic():
                return []
            return self._frames()
        except FrameError as error:
            self._failed = error
            self._buffer.clear()
            raise

    def _find_magic(self) -> bool:
        buffer = self._buffer
        at = buffer.find(MAGIC)
        if at < 0:
            if not self._skip and not MAGIC.startswith(bytes(buffer[: len(MAGIC)])):
                raise FrameError("the other side does not speak the gpuprof protocol", "Is it gpuprof-tui?")
            if len(buffer) > MAX_PREAMBLE_BYTES:
                raise FrameError(
                    "no gpuprof stream after 64 KiB of other output",
                    "Does the login shell of that account print without end?",
                )
            return False
        if at and not self._skip:
            raise FrameError("the other side does not speak the gpuprof protocol", "Is it gpuprof-tui?")
        if at > MAX_PREAMBLE_BYTES:
            raise FrameError("no gpuprof stream in the first 64 KiB of output")
        self.preamble = bytes(buffer[:at])
        del buffer[: at + len(MAGIC)]
        self._started = True
        return True

    def _frames(self) -> list[Frame]:
        frames: list[Frame] = []
        buffer = self._buffer
        at = 0
        with memoryview(buffer) as view:
            while len(view) - at >= _LENGTH.size:
                (length,) = _LENGTH.unpack_from(view, at)
                if length > self._max:
                    raise FrameError(f"a frame claims {length} bytes; at most {self._max} are taken")
                end = at + _LENGTH.size + length
                if end > len(view):
                    break
                with view[at + _LENGTH.size : end] as body:
                    frame = codec.decode(bytes(body))
                if frame is not None:
                    frames.append(frame)
                at = end
        del buffer[:at]
        return frames
