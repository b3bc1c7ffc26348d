"""Several hosts on one machine, and what starts jobs there: ssh, MPI, Slurm, LSF. Knows `jobs`."""
