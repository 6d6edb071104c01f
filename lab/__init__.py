"""The labs: how to make nodes, nothing about what is done to them."""
