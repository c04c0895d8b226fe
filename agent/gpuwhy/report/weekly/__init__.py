"""The weekly report: history to figures, and figures to what people read.

``history.py`` is what either source hands on, ``figures.py`` makes all that a report says of it, and
``formats/`` shows that; no format computes.
"""
