"""`zerohop doctor`: what a deployment usually gets wrong, each finding with what to do about it."""
