"""The registry through which the processes of TensorFlow's data service find each other.

`service` runs in one process, `client` in all that query it; `registry` holds the data, `messages`
is the protocol. Knows `core` and no framework; `hvdtune.tensorflow.data` is built on it.
"""
