"""World, process sets, operations and object collectives on top of the native engine."""

from importlib.util import find_spec

if find_spec("hvdtune._native") is None:
    folder = __file__.rsplit("/", 2)[0]
    raise ImportError(
        f"{folder} is hvdtune's source, which was not compiled: start Python in another directory "
        "to import the installed hvdtune, or run: pip install -e ."
    )
