"""What a decision knows: the snapshot as arrays, loads corrected by picks, prefixes, sessions."""
