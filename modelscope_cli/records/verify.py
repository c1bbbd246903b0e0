"""What `verify` returns."""

from dataclasses import dataclass

from modelscope_cli.records.certificate import Certificate, Machine
from modelscope_cli.records.run import Record


@dataclass(frozen=True, slots=True)
class VerifiedBlock:
    """One block that was computed again.

    Attributes:
        phase: what was computed; some commands go through all images twice.
        images: how many.
        is_same_machine: whether it was computed on a machine of this kind, and all bits have to be the same.
        is_equal: whether all bits are.
        gap: the largest difference of two numbers, as a share of the largest number beside them; None where what
            was found is not of one shape.
        passed: equal bits on the same kind of machine; elsewhere a gap within the tolerance.
    """

    phase: str
    block: int
    images: int
    is_same_machine: bool
    is_equal: bool
    gap: float | None
    passed: bool


@dataclass(frozen=True, slots=True)
class VerifyRecord(Record):
    """What `verify` returns.

    Attributes:
        result: the folder that was verified.
        blocks: those that were computed again.
        tolerance: of the gap of a block that another kind of machine computed.
        machine: that computes here.
        certificate: of all blocks as they lie in the folder.
        differences: in words, what is not as it was when the result was made: the list of files, the model, the
            blocks, the report.
        passed: no difference, and every block passed.
    """

    result: str
    of: str
    blocks: tuple[VerifiedBlock, ...]
    tolerance: float
    machine: Machine
    certificate: Certificate
    differences: tuple[str, ...]
    passed: bool
