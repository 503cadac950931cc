"""Ready configurations: modules with a `CONFIG`; the docstring says how to run it, on what, and how long it
takes."""
