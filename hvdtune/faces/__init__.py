"""Everything that does not depend on a framework's tensors, so that no face writes it again.

A face adds an `Adapter` and the parts that only its framework has. All faces use `adapter`,
`arguments` and `basics`; `collectives` makes the operations; the rest is for faces with gradients.
Knows `core`.
"""
