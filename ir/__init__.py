"""Represent tensor programs: expressions, statements, functions and targets, with script text, equality and an interpreter."""
