"""What does not depend on a framework's tensors, so that no face writes it a second time.

A face adds an `Adapter` and what is its framework's alone. All faces use `adapter`, `arguments` and
`basics`; `collectives` makes the operations; the rest is for faces with gradients. Knows `core`.
"""
