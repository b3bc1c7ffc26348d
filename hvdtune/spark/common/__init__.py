"""What the estimators of all frameworks share: stores, parameters, data, transformers.

Knows `hvdtune.spark.run` and `launch.function`; of the frameworks, none.
"""
