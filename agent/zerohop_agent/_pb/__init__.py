"""Generated from `proto/` by `proto/generate`; never edited by hand."""
