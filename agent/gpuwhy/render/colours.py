"""One colour per verdict, on every dashboard; the causes of a verdict are shades of its hue.

The hues are those of Okabe and Ito's palette, which people with any common colour blindness tell apart; what
calls for nobody is grey. Tests compute that they stay apart, and stand out from Grafana's dark background.
"""

from __future__ import annotations

from gpuwhy.verdict import vocabulary

VERDICTS: dict[str, str] = {
    vocabulary.STARVING: "#E69F00",
    vocabulary.MEMORY_BOUND: "#56B4E9",
    vocabulary.THROTTLED: "#D55E00",
    vocabulary.PSEUDO_PEAK: "#CC79A7",
    vocabulary.HEALTHY: "#009E73",
    vocabulary.IDLE: "#C3C8D0",
    vocabulary.UNKNOWN: "#666C75",
}
# Where red and green mean good and bad for sure, such as down and up.
GOOD, BAD, NEUTRAL = "#009E73", "#D55E00", "#8E96A3"

# How far a shade goes, of the way to black that the colour has, and of that to white.
_DARKER, _LIGHTER = 0.45, 0.8


def _mixed(colour: str, amount: float) -> str:
    target, part = (255, amount) if amount > 0 else (0, -amount)
    channels = (int(colour[start : start + 2], 16) for start in (1, 3, 5))
    return "#" + "".join(f"{round(each + (target - each) * part):02X}" for each in channels)


def _shades(colour: str, count: int) -> list[str]:
    """From dark to light, in even steps; a lone one is the colour itself."""
    if count == 1:
        return [colour]
    light = sum(int(colour[start : start + 2], 16) for start in (1, 3, 5)) / (3 * 255)
    darkest, lightest = -_DARKER * light, _LIGHTER * (1 - light)
    step = (lightest - darkest) / (count - 1)
    return [_mixed(colour, darkest + step * index) for index in range(count)]


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
