"""The container lab: systemd containers with their own Docker Engine as nodes."""
