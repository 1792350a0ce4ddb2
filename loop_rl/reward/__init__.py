"""What calls reward functions: by name, checked, in this process or in a pool of them."""
