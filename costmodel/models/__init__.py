"""Cost models: the interface, boosted trees (XGBoost), an MLP, and the controls."""
