"""What users call: tune, compile, replay, show, doctor."""
