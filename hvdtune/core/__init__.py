"""The running job, whatever the framework: the only way to the native engine.

`world` is its state, which every module here may know. `operations`, `process_sets`, `objects`
and `membership` act on it. `job` begins and ends it, and knows all of them, `libraries/` and
`observation/`.
"""

try:
    import hvdtune._native  # noqa: F401
except ModuleNotFoundError:
    folder = __file__.rsplit("/", 2)[0]
    raise ImportError(
        f"{folder} is hvdtune's source, which was not compiled, and no installed hvdtune was "
        "found: run pip install . in the checkout"
    ) from None
