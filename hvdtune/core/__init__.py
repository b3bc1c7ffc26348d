"""World, process sets, operations and object collectives on top of the native engine."""

try:
    import hvdtune._native  # noqa: F401
except ModuleNotFoundError:
    folder = __file__.rsplit("/", 2)[0]
    raise ImportError(
        f"{folder} is hvdtune's source, which was not compiled, and no installed hvdtune was "
        "found: run pip install . in the checkout"
    ) from None
