"""Compare search methods: engines, and the studies made with them."""
