"""Published translation models: finding, reading and writing them, without running any of them."""
