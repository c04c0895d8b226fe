"""One colour per verdict, on dashboards, the page and reports; its causes are shades of its hue.

The hues are those of Okabe and Ito's palette, which people with any common colour blindness tell apart, a little
lighter or darker where text on them could not be read; what calls for nobody is grey. Tests compute that they stay
apart, stand out from Grafana's dark background, and leave text readable.
"""

from __future__ import annotations

from gpuwhy.verdict import vocabulary

VERDICTS: dict[str, str] = {
    vocabulary.STARVING: "#F0B42B",
    vocabulary.MEMORY_BOUND: "#80C6EF",
    vocabulary.THROTTLED: "#D55E00",
    vocabulary.PSEUDO_PEAK: "#B466AC",
    vocabulary.HEALTHY: "#00956C",
    vocabulary.IDLE: "#C3C8D0",
    vocabulary.UNKNOWN: "#666C75",
}
# Where red and green mean good and bad for sure, such as down and up.
GOOD, BAD, NEUTRAL = "#00956C", "#D55E00", "#8E96A3"

# Grafana writes on a colour in near-black where it is brighter than this, of 255, and else in near-white.
_BRIGHT = 180
# Luminance, of 1, of the darkest shade that stands out from dark panels, of the lightest on which near-white
# can be read, and of the lightest that stands out from white.
_DARKEST, _READABLE, _LIGHTEST = 0.07, 0.23, 0.75
# Shades are looked for in steps of a hundredth: to half of the way to black, and to two thirds of that to white.
_WAY = range(-50, 67)


def _channels(colour: str) -> tuple[int, int, int]:
    red, green, blue = (int(colour[start : start + 2], 16) for start in (1, 3, 5))
    return red, green, blue


def _bright(colour: str) -> bool:
    parts = zip((0.299, 0.587, 0.114), _channels(colour), strict=True)
    return sum(weight * channel for weight, channel in parts) > _BRIGHT


def _usable(colour: str) -> bool:
    shares = (channel / 255 for channel in _channels(colour))
    linear = (share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares)
    luminance = sum(weight * share for weight, share in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
    return _DARKEST <= luminance <= (_LIGHTEST if _bright(colour) else _READABLE)


def ink(colour: str) -> str:
    """The text colour to write on ``colour`` with."""
    return "#0B0C0E" if _bright(colour) else "#FFFFFF"


def _mixed(colour: str, amount: float) -> str:
    target, part = (255, amount) if amount > 0 else (0, -amount)
    return "#" + "".join(f"{round(each + (target - each) * part):02X}" for each in _channels(colour))


def _shades(colour: str, count: int) -> list[str]:
    """From dark to light, in even steps, with the colour's own text on all; a lone one is the colour itself."""
    if count == 1:
        return [colour]
    shades = [_mixed(colour, step / 100) for step in _WAY]
    usable = [shade for shade in shades if _bright(shade) == _bright(colour) and _usable(shade)]
    return [usable[round(index * (len(usable) - 1) / (count - 1))] for index in range(count)]


def _causes() -> dict[str, str]:
    named: dict[str, str] = {}
    for verdict, colour in VERDICTS.items():
        keys = ["/".join(cause.key) for cause in vocabulary.CAUSES if cause.verdict == verdict]
        named |= dict(zip(keys, _shades(colour, len(keys)), strict=True))
    return named


CAUSES: dict[str, str] = _causes()


def of(verdict: str) -> dict[str, str]:
    """The colours of a verdict's causes, by ``verdict/cause``."""
    return {name: colour for name, colour in CAUSES.items() if name.startswith(f"{verdict}/")}
