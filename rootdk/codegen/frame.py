"""Reading the call frame inside a kernel."""

from dataclasses import dataclass

from llvmlite import ir

from rootdk.codegen.builder import I64, POINTER, Builder
from rootdk.codegen.online_softmax import LOG2_E
from rootdk.planning.frame import FRAME

__all__ = ["Frame"]


@dataclass(frozen=True)
class Frame:
    """Reads the frame's words inside a function."""

    b: Builder
    pointer: ir.Value

    def word(self, name: str) -> ir.Value:
        return self.b.load(I64, self.pointer, FRAME[name] * 8, align=8)

    def address(self, name: str) -> ir.Value:
        return self.b.load(POINTER, self.pointer, FRAME[name] * 8, align=8)

    def place(self, name: str) -> ir.Value:
        """Where the word itself is, for counters that workers share."""
        return self.b.at(self.pointer, FRAME[name] * 8)

    def head_address(self, operand: str, batch: ir.Value, head: ir.Value) -> ir.Value:
        """Where the [len, d] matrix of one batch element and head starts."""
        b = self.b
        offset = b.load(I64, self.address(f"{operand}_batch"), b.mul(batch, 8), align=8)
        return b.at(self.address(operand), b.add(offset, b.mul(head, self.word(f"{operand}_head"))))

    def scale(self) -> ir.Value:
        """What queries are multiplied by, a float64."""
        return self.b.load(ir.DoubleType(), self.place("scale"), align=8)

    def dropout_scale(self) -> ir.Value:
        """What dropout multiplies the weights that stay by, an accumulator."""
        return self.b.narrowed(self.b.load(ir.DoubleType(), self.place("dropout_scale"), align=8))

    def log2_scores(self) -> ir.Value:
        """Whether scores are exponents of 2: without a score function, log2 e rides on the scale."""
        return self.b.ir.icmp_signed("!=", self.word("log2_scores"), self.b.index(0))

    def query_factor(self) -> ir.Value:
        """The scale as an accumulator; with log2 e in it where scores are to be exponents of 2."""
        b, double = self.b, ir.DoubleType()
        unit = b.ir.select(self.log2_scores(), ir.Constant(double, LOG2_E), ir.Constant(double, 1.0))
        return b.narrowed(b.ir.fmul(self.scale(), unit))
