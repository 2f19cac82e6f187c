"""What the doctor is told of a kernel's structures, on kernels that lack some."""

from __future__ import annotations

import pytest

from gpuprof.bpf.btf import Btf, BtfError
from gpuprof.bpf.features import finding, type_features


class Kernel(Btf):
    """Has every field but those of which the structure and the first name are given."""

    def __init__(self, *missing: tuple[str, str]) -> None:
        self.missing = missing

    def offset(self, structure: str, *fields: str) -> int:
        if (structure, fields[0]) in self.missing:
            raise BtfError(f"no field {'.'.join(fields)} in struct {structure} of this kernel")
        return 8


def found(kernel: Kernel) -> list[tuple[str, str]]:
    return [(words["state"], words["detail"]) for words in map(finding, type_features(lambda: kernel))]


def test_a_kernel_with_everything() -> None:
    assert found(Kernel()) == [("ok", ""), ("ok", "")]


def test_a_kernel_without_the_maple_tree() -> None:
    """mm_struct.mm_mt came with Linux 6.1."""
    told = found(Kernel(("mm_struct", "mm_mt")))
    assert told[0] == ("ok", "")
    state, detail = told[1]
    assert state == "note"
    assert detail.startswith("since Linux 6.1: no field mm_mt.ma_root in struct mm_struct")
    assert detail.endswith("; new processes have stacks only once their tables are published")


def test_a_field_that_had_other_names() -> None:
    assert found(Kernel(("inode", "i_mtime_sec"), ("inode", "__i_mtime"))) == [("ok", "")] * 2
    every_name = [("inode", name) for name in ("i_mtime_sec", "__i_mtime", "i_mtime")]
    assert [state for state, _ in found(Kernel(*every_name))] == ["ok", "note"]


def test_a_field_that_is_needed() -> None:
    told = found(Kernel(("task_struct", "signal")))
    assert [state for state, _ in told] == ["missing"]
    assert "no field signal in struct task_struct" in told[0][1]


def test_no_type_information() -> None:
    def none() -> Btf:
        raise BtfError("this kernel has no type information")

    assert [finding(feature)["state"] for feature in type_features(none)] == ["missing"]


def test_the_first_field_that_there_is() -> None:
    kernel = Kernel(("a", "new"))
    assert kernel.first_offset((("a", "new"), ("a", "old"))) == 8
    with pytest.raises(BtfError, match="no field new"):
        kernel.first_offset((("a", "new"),))
