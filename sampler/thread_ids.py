"""The ids of threads in the current tables, and which of the names of a thread is the last."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpuprof.bpf.records import Batch
from gpuprof.sampler.process_follower import ProcessFollower
from gpuprof.sampler.process_stacks import ProcessStacks
from gpuprof.sampler.record_threads import RecordThreads
from gpuprof.snapshots.tables import Tables

MAX_THREADS = 1 << 12  # of one process, whose ids are kept


class ThreadIds:
    """The ids are cached in the processes. Not thread-safe: History.lock is held around every call."""

    def __init__(self, follower: ProcessFollower) -> None:
        self._follower = follower
        self._generation = -1
        # Of each pid, start and tid its last name, and since when.
        self._named: dict[tuple[int, int, int], tuple[int, bytes]] = {}

    def get(
        self, tables: Tables, process: ProcessStacks, tid: int, comm: bytes, time_ns: int | None = None
    ) -> int:
        """The id of a thread of a process, with its name as the record has it, unless a later one was given.

        `time_ns`: when it had that name; None: later than all before. Records of several rings come in any
        order, and an exec renames a thread.
        """
        if self._generation != tables.generation:
            self._generation = tables.generation
            self._named.clear()
            for known in self._follower.all():
                known.table_threads.clear()
        known_comm, thread = process.table_threads.get(tid, (b"", -1))
        if thread < 0 or known_comm != comm:  # the tables keep the name that was given last
            if len(process.table_threads) >= MAX_THREADS:  # a process may have any number
                process.table_threads.clear()
            # Of what the process was before an exec, too.
            whose = process.definition.pid, process.definition.start_ns, tid
            named_ns, name = self._named.get(whose, (0, comm))
            if time_ns is None or time_ns >= named_ns:
                named_ns, name = named_ns if time_ns is None else time_ns, comm
                self._named[whose] = named_ns, name
            process_id = tables.process(process.definition)
            thread = tables.thread(process_id, tid, name.decode("utf-8", "backslashreplace"))
            process.table_threads[tid] = name, thread
        return thread

    def of_records(self, tables: Tables, batch: Batch, threads: RecordThreads) -> NDArray[np.uint32]:
        """The id of the thread of each record of a batch, each with the name of its last record."""
        tids, comms = batch.tid[threads.first].tolist(), batch.comm[threads.first].tolist()
        last_ns = np.zeros(len(tids), np.uint64)
        np.maximum.at(last_ns, threads.of_record, batch.time_ns)
        get = self.get
        ids = [
            get(tables, process, tid, comm, time_ns)
            for process, tid, comm, time_ns in zip(
                threads.processes, tids, comms, last_ns.tolist(), strict=True
            )
        ]
        found: NDArray[np.uint32] = np.array(ids, np.uint32)[threads.of_record]
        return found
