"""Fits the polynomials of rootdk.codegen's functions: prints each table with its degree, interval and largest error.

Run ``python tools/minimax.py`` for all of them, or name some: ``python tools/minimax.py EXP2 LOG``. Needs mpmath.

The fit is Remez's exchange on a grid, in 60-digit arithmetic. Rounding all coefficients at the end would lose up to
half a digit, so they are rounded one at a time, lowest first, and the others fitted again after each.
"""

import struct
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mpmath import mp, mpf

mp.dps = 60
GRID = 600
EXCHANGES = 30


@dataclass(frozen=True)
class Fit:
    """f(x) is approached by sum of c[i] x^i on [low, high], with error measured as |weight(x) * (sum - f(x))|."""

    function: Callable[[mpf], mpf]
    low: float
    high: float
    degrees: dict[int, int]
    """Degree for each width in bits: 32 and 64."""
    weight: Callable[[mpf], mpf]
    fixed: Sequence[float] = ()
    """The lowest coefficients, where they must be exact."""


def rounded(value: mpf, bits: int) -> mpf:
    """The nearest float of ``bits`` bits."""
    return mpf(struct.unpack("f", struct.pack("f", float(value)))[0]) if bits == 32 else mpf(float(value))


def evaluate(coefficients: Sequence[mpf], x: mpf) -> mpf:
    total = mpf(0)
    for c in reversed(coefficients):
        total = total * x + c
    return total


def alternating(errors: Sequence[mpf], count: int) -> list[int]:
    """Places of ``count`` extrema whose signs alternate, the largest ones."""
    places: list[int] = []
    for place, error in enumerate(errors):
        if places and (error > 0) == (errors[places[-1]] > 0):
            if abs(error) > abs(errors[places[-1]]):
                places[-1] = place
        else:
            places.append(place)
    size = lambda i: abs(errors[places[i]])  # noqa: E731
    while len(places) > count:
        least = min(range(len(places)), key=size)
        if 0 < least < len(places) - 1 and len(places) >= count + 2:
            # an inner one takes a neighbour with it, or signs would repeat
            first = least if size(least + 1) < size(least - 1) else least - 1
            del places[first : first + 2]
        else:
            places.pop(0 if size(0) < size(-1) else -1)
    return places


def remez(fit: Fit, fixed: Sequence[mpf], degree: int) -> tuple[list[mpf], mpf]:
    """All coefficients up to ``degree``, the first of them ``fixed``, and the largest weighted error."""
    count = len(fixed)
    free = degree + 1 - count
    middle, half = (mpf(fit.low) + mpf(fit.high)) / 2, (mpf(fit.high) - mpf(fit.low)) / 2
    grid = [middle - half * mp.cos(mp.pi * i / GRID) for i in range(GRID + 1)]
    grid = [x for x in grid if abs(x) > half * mpf(10) ** -9]
    # what the free coefficients must make of it, after division by x^count: a polynomial again, so errors alternate
    wanted = [(fit.function(x) - evaluate(fixed, x)) / x**count for x in grid]
    weights = [fit.weight(x) * abs(x) ** count for x in grid]
    if not free:
        return list(fixed), max(abs(w * r) for w, r in zip(weights, wanted, strict=True))
    places = [round((len(grid) - 1) * k / free) for k in range(free + 1)]
    for _ in range(EXCHANGES):
        rows = [[grid[p] ** i for i in range(free)] + [(-1) ** k / weights[p]] for k, p in enumerate(places)]
        solution = list(mp.lu_solve(mp.matrix(rows), mp.matrix([wanted[p] for p in places])))[:free]
        errors = [w * (evaluate(solution, x) - r) for w, x, r in zip(weights, grid, wanted, strict=True)]
        found = alternating(errors, free + 1)
        if found == places or len(found) < free + 1:
            break
        places = found
    return [*fixed, *solution], max(abs(error) for error in errors)


def table(fit: Fit, bits: int) -> tuple[list[mpf], mpf]:
    """Coefficients that are floats of ``bits`` bits, and the largest error with them."""
    fixed, degree = [mpf(c) for c in fit.fixed], fit.degrees[bits]
    while len(fixed) <= degree:
        coefficients, _ = remez(fit, fixed, degree)
        fixed.append(rounded(coefficients[len(fixed)], bits))
    return remez(fit, fixed, degree)


def relative(function: Callable[[mpf], mpf]) -> Callable[[mpf], mpf]:
    return lambda x: 1 / function(x)


def exp2(x: mpf) -> mpf:
    return mpf(2) ** x


def expm1_quotient(x: mpf) -> mpf:
    return mp.expm1(x) / x


def atanh_tail(z: mpf) -> mpf:
    """log(1 + f) = s (2 + z * this) with s = f / (2 + f), z = s^2."""
    s = mp.sqrt(z)
    return (mp.log((1 + s) / (1 - s)) / s - 2) / z


def atanh_second_tail(z: mpf) -> mpf:
    """log(1 + f) = 2 s (1 + z (1 / 3 + z * this)) with s and z as above."""
    return (atanh_tail(z) / 2 - mpf(1) / 3) / z


def erf_excess(z: mpf) -> mpf:
    """erf(x) = x + x * this with z = x^2."""
    return mp.erf(mp.sqrt(z)) / mp.sqrt(z) - 1


def log_erfc(t: mpf) -> mpf:
    return mp.log(mp.erfc(t + 3))


def sine_quotient(z: mpf) -> mpf:
    return mp.sin(mp.sqrt(z)) / mp.sqrt(z)


def cosine(z: mpf) -> mpf:
    return mp.cos(mp.sqrt(z))


HALF_LOG_2 = float(mp.log(2) / 2) * 1.0001
EIGHTH_TURN = float((mp.pi / 4) ** 2) * 1.0001

FITS = {
    "EXP2": Fit(exp2, -0.5, 0.5, {32: 5, 64: 11}, relative(exp2), (1.0,)),
    "EXPM1": Fit(expm1_quotient, -HALF_LOG_2, HALF_LOG_2, {32: 5, 64: 11}, relative(expm1_quotient), (1.0, 0.5)),
    "LOG": Fit(atanh_tail, 0, 0.029437251522859413, {32: 2, 64: 6}, lambda z: z / 2),
    "LOG_TAIL": Fit(atanh_second_tail, 0, 0.029437251522859413, {64: 7}, lambda z: z * z),
    "ERF": Fit(erf_excess, 0, 1, {32: 6, 64: 12}, lambda z: 1 / (1 + erf_excess(z))),
    "LOG_ERFC_32": Fit(log_erfc, -2, 1, {32: 5}, lambda t: mp.erfc(t + 3)),
    "LOG_ERFC_64": Fit(log_erfc, -2, 3, {64: 17}, lambda t: mp.erfc(t + 3)),
    "SIN": Fit(sine_quotient, 0, EIGHTH_TURN, {32: 3, 64: 6}, relative(sine_quotient), (1.0,)),
    "COS": Fit(cosine, 0, EIGHTH_TURN, {32: 4, 64: 7}, relative(cosine), (1.0, -0.5)),
}


def main() -> None:
    for name in sys.argv[1:] or FITS:
        fit = FITS[name]
        print(f"{name} on [{fit.low:.17g}, {fit.high:.17g}]")
        for bits in fit.degrees:
            coefficients, error = table(fit, bits)
            print(f"    {bits} bits: degree {fit.degrees[bits]}, error {float(error):.1e}")
            digits = 9 if bits == 32 else 17
            print("        " + ", ".join(f"{float(c):.{digits}g}" for c in coefficients))


if __name__ == "__main__":
    main()
