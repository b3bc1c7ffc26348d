"""The part that the estimators of all frameworks share: stores, parameters, data, transformers.

Knows `hvdtune.spark.run` and `launch.function`, but none of the frameworks.
"""
