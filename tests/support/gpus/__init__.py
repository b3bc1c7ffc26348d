"""GPUs where there are none: stand-ins for NVIDIA's libraries, and compiling the kernels."""
