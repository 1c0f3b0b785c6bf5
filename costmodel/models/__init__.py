"""Cost models: the interface, XGBoost, an MLP, controls."""
