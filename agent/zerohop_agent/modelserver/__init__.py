"""What each model server says, read over HTTP or from its engine plugin, as `Signals`."""
