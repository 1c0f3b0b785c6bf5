"""Predict the cost of candidates: features, an analytic model, learned models, and metrics to evaluate them."""
