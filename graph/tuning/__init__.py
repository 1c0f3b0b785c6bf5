"""Extract tuning tasks from models, and apply records to them."""
