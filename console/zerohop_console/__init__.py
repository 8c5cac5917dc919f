"""What a person runs: the zerohop command."""
