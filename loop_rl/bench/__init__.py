"""What updates, decoding and prefill cost on this machine."""
