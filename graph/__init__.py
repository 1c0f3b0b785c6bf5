"""Import, optimise and lower models as graph functions, and apply tuning records to them."""
