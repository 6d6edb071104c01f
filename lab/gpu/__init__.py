"""The GPU lab: two nodes of the container lab, each with one real GPU."""
