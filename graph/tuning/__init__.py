"""Extract tuning tasks from models and apply tuning records to them."""
