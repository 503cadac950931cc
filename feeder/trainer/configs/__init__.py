"""Ready configurations: modules with `CONFIGS`, by name; the docstring says what they are, where their
numbers come from and what came of them."""
