"""Measure how many candidates a process drafts and scores."""
