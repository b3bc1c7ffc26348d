"""What costs a job its time, and what to do about it. May know `replay` and below."""
