"""What something costs as a straight line over the size of a capture."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import linear_regression

GIGA = 10**9
Points = list[tuple[float, float]]  # (GB, cost)


@dataclass(frozen=True)
class Line:
    """fixed + per_gb * GB."""

    fixed: float
    per_gb: float

    @staticmethod
    def through(points: Points) -> Line:
        """The least squares line through two points or more."""
        per_gb, fixed = linear_regression(*zip(*points, strict=True))
        return Line(fixed, per_gb)

    def of(self, gb: float) -> float:
        return self.fixed + self.per_gb * gb

    def deviation(self, points: Points) -> float:
        """The largest distance of a point from the line, as a share of the line."""
        return max(abs(cost - self.of(gb)) / self.of(gb) for gb, cost in points)
