"""What carries out an elastic job's decisions, with processes, connections and a clock."""
