"""What the service bears on this machine, next to what it promises."""
