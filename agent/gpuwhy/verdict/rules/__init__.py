"""One file per rule. ``engine`` says in which order they are asked."""
