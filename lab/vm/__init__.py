"""The VM lab: two emulated machines inside one container."""
