"""What observing costs, measured side by side with the bare engine in one run."""
