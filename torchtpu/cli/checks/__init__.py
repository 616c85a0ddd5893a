"""What `torchtpu-doctor` looks at: one module per section, each a function `rows`."""
