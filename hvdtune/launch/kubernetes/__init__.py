"""Training jobs as objects of Kubernetes, for `hvdtune k8s`.

`job` describes the job, whatever the object; `mpijob` and `trainjob` make the objects of
Kubeflow's MPI Operator and Trainer. Knows no other room; no cluster is contacted.
"""
