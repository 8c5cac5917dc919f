"""Collectors: one file each, one small interface (`base.Collector`), timed and run apart by `base.CollectorDriver`."""
