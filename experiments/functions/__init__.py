"""Compare programs that no sketch rule was written for with torch."""
