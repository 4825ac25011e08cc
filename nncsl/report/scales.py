"""Numbers to positions and to words."""

import math


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About ``count`` round numbers from at or below ``low`` to at or above ``high``."""
    span = (high - low) or abs(high) or 1.0
    raw = span / max(1, count - 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 12) for i in range(first, max(last, first + 1) + 1)]


def whole_ticks(low: float, high: float) -> list[int]:
    """Whole numbers from ``low`` to ``high``: all of up to ten, else about six round ones."""
    if high - low < 10:
        return list(range(math.ceil(low), math.floor(high) + 1))
    return [int(tick) for tick in ticks(low, high, 6) if low <= tick <= high and tick == int(tick)]


def short(value: float) -> str:
    """A tick's label: as few digits as tell it."""
    if value == 0:
        return "0"
    if abs(value) < 1e-3 or abs(value) >= 1e5:
        return f"{value:.3g}"
    return f"{value:.6f}".rstrip("0").rstrip(".").replace("-", "−")


def duration(seconds: float) -> str:
    """Seconds as people say them."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d} min"


def size(number: float) -> str:
    """Bytes in the largest unit that keeps a digit before the point."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= factor:
            return f"{number / factor:.3g} {unit}" if number < 1000 * factor else f"{number / factor:.0f} {unit}"
    return f"{number:.0f} B"
