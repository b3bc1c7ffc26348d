"""World, process sets, operations and object collectives on top of the native engine."""
