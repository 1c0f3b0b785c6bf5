"""Cost models: features of whole populations, the analytic model, learned models, and the metrics they are judged by."""
