"""Numbers for people, in few letters: counts, bytes, spans of time. Pure."""


def short(value: float) -> str:
    """1234567 as 1.23M."""
    if value < 0:
        return "-" + short(-value)
    for unit in ("", "k", "M", "G", "T"):
        if value < 999.5:
            return _digits(value, unit)
        value /= 1000
    return f"{value:.3g}P"


def bytes_text(value: float) -> str:
    """1234567 as 1.18Mi."""
    for unit in ("", "Ki", "Mi", "Gi", "Ti"):
        if value < 999.5:
            return _digits(value, unit)
        value /= 1024
    return f"{value:.3g}Pi"


def size_text(size: int) -> str:
    """1234567 as 1.2 MiB, for sentences."""
    amount = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def span_text(value_s: float) -> str:
    """0.00123 as 1.23ms, 4000 as 1h06m."""
    if value_s < 0.9995e-3:
        return f"{value_s * 1e6:.0f}us"
    if value_s < 0.9995:
        return f"{value_s * 1e3:.3g}ms"
    if value_s < 99.5:
        return f"{value_s:.3g}s"
    minutes = int(value_s) // 60
    if minutes < 60:
        return f"{minutes}m{int(value_s) % 60:02d}s"
    if minutes < 48 * 60:
        return f"{minutes // 60}h{minutes % 60:02d}m"
    return f"{minutes // 1440}d{minutes // 60 % 24:02d}h"


def _digits(value: float, unit: str) -> str:
    if not unit and value == int(value):
        return str(int(value))
    return f"{value:.3g}{unit}"
