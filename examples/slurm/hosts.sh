#!/bin/sh
# Prints the nodes of all running Slurm jobs of this user with a given name, for an elastic job's
# --host-discovery-script. Jobs with that name may be submitted, cancelled, preempted and requeued
# while the elastic job runs: their nodes join and leave it.
#
#   hosts.sh [NAME]     (default: the name of the Slurm job in which it runs)
#
# It fails if Slurm does not answer; the hosts then do not change.
set -e
jobs=$(squeue --me --noheader --states RUNNING --name "${1:-$SLURM_JOB_NAME}" --format %N)
[ -n "$jobs" ] || exit 0
# Lists such as node[01-03,7]; nodes that do not answer are left out.
lists=$(echo $jobs | tr ' ' ,)
nodes=$(sinfo --noheader --Node --responding --nodes "$lists" --format %N)
echo "$nodes" | sort -u
