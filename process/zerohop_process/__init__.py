"""How every zerohop process starts, logs, reads its configuration and stops."""
