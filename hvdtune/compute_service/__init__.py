"""The registry by which the processes of TensorFlow's data service find each other.

`service` runs in one process, `client` in all that ask it; `registry` is what it knows, `messages`
how they talk. Knows `core` and no framework; `hvdtune.tensorflow.data` is built on it.
"""
