"""One file per kind of workload; to add one, add its file and its place in ``resolver.KINDS``."""
