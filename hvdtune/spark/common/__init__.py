"""What the estimators of all frameworks share: stores, parameters, data, transformers."""
