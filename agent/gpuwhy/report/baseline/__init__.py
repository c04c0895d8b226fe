"""Baselines: a load test's window kept under a name, and what moved since, by a test that survives noise.

``take`` makes a ``Baseline`` from verdicts, the local store or a Prometheus; ``kept`` keeps it in a file;
``compare`` says what moved between two of them.
"""
