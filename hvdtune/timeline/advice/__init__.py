"""What costs a job its time, and what to do about it. Uses the analysis and the replay."""
